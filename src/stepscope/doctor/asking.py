"""Asks the Python that would run the program, with a limit on time."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import field
from pathlib import Path
from typing import Any

from stepscope.doctor.probe import MARK
from stepscope.records import dataclass

__all__ = ["Answer", "ask"]

_PROBE = Path(__file__).with_name("probe.py")
_LAST_LINES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe told, or why it told nothing."""

    told: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    errors: str = ""
    """What it printed to standard error."""


def ask(python: str, what: str, seconds: float) -> Answer:
    """Runs the probe in another process; one that hangs is ended."""
    environment = {**os.environ, "KINETO_LOG_LEVEL": "1"}
    environment.pop("STEPSCOPE_CAPTURE", None)
    try:
        done = subprocess.run(  # noqa: S603
            [python, str(_PROBE), what],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        return Answer(problem=f"no answer after {seconds:.0f} s", errors=said)
    except OSError as error:
        return Answer(problem=f"{python} cannot be run: {error.strerror}")
    errors = done.stderr.decode(errors="replace")
    for line in reversed(done.stdout.decode(errors="replace").splitlines()):
        if line.startswith(MARK):
            return Answer(told=json.loads(line.removeprefix(MARK)), errors=errors)
    last = " ".join(line.strip() for line in errors.strip().splitlines()[-_LAST_LINES:])
    how = (
        f"ended with exit code {done.returncode}" if done.returncode >= 0 else f"crashed ({done.returncode})"
    )
    return Answer(problem=f"{how}: {last}" if last else how, errors=errors)
