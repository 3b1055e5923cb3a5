"""Runs one side once: the program as it is, not profiled, until its step is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from stepscope.capture.settings import Settings
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.trials import Measurement

__all__ = ["RunError", "Side", "measured_in", "run_side"]

_STOPPED = "everything is recorded; the program ends here"
"""What the capture says when it ends the program: its exit code is not the program's own then."""
_LAST_LINES, _LAST_BYTES = 15, 20_000
_PATIENCE_S = 5.0
"""How long a program may take to end when it is told to."""


@dataclass(frozen=True, slots=True)
class Side:
    """How the program is run on one side of the change."""

    name: str
    command: tuple[str, ...]
    folder: Path
    """Where it is started."""
    variables: Mapping[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    """Where Python looks for modules first."""


class RunError(StepscopeError):
    """A side could not be measured; `said` are the last lines of the program."""

    def __init__(self, message: str, said: Sequence[str], *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.said = tuple(said)


def run_side(side: Side, settings: Settings) -> None:
    """Runs the program of one side; what it prints is kept aside, and shown if it fails."""
    folder = Path(settings.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("w+b") as output, (folder / "errors.txt").open("w+b") as errors:
        code = _ended(side, _environment(side, settings), output, errors)
        said = [*_last(errors)] or [*_last(output)]
    if code and not any(_STOPPED in line for line in said):
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
        raise RunError(f"the program {how}, {side.name}", said[-_LAST_LINES:], hint="run it by itself first")


def _environment(side: Side, settings: Settings) -> dict[str, str]:
    """The variables of the program: the user's, those of the capture, and those of the side."""
    variables = settings.environment()
    inject, *before = variables["PYTHONPATH"].split(os.pathsep)
    chosen = side.variables.get("PYTHONPATH")
    after = chosen.split(os.pathsep) if chosen is not None else before
    variables["PYTHONPATH"] = os.pathsep.join([inject, *side.places, *after])
    set_by_side = {name: value for name, value in side.variables.items() if name != "PYTHONPATH"}
    return {**os.environ, **set_by_side, **variables}


def _ended(side: Side, environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes]) -> int:
    """Runs the program to its end; it and all it has started end with us."""
    program: subprocess.Popen[bytes] | None = None
    try:
        with _undisturbed():
            program = subprocess.Popen(  # noqa: S603  # what the user typed
                list(side.command),
                cwd=side.folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        return program.wait()
    except OSError as error:
        raise StepscopeError(
            f"{side.command[0]} cannot be run {side.name}: {error.strerror}", hint=f"ls -l {side.command[0]}"
        ) from error
    finally:
        if program is not None:
            _end(program)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps signals for the end of this: one that came between a start and its note would leave a program."""
    came: list[tuple[int, Any]] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda *now: came.append(now))
    try:
        yield
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
    for now in came:
        before[now[0]](*now)


def _end(program: subprocess.Popen[bytes]) -> None:
    """Ends the program and what it has started, if they still run."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGTERM)
    try:
        program.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def _last(file: IO[bytes]) -> list[str]:
    """The last lines of a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LAST_BYTES))
    return file.read().decode(errors="replace").splitlines()


def measured_in(folder: Path, side: str) -> Measurement:
    """What a run has measured: its slowest rank sets the pace, and rank 0 tells the losses."""
    ranks = [_read(path) for path in sorted(folder.glob("rank*.json"))]
    timed = [rank for rank in ranks if rank.get("unprofiled_steps_ns")]
    if not timed:
        seen = max((rank.get("steps_seen") or 0 for rank in ranks), default=0)
        raise StepscopeError(
            f"the program ended before its step could be measured, {side}: {seen} steps were seen"
            if seen
            else f"no steps of the program were seen, {side}",
            hint="let it run for more steps, or --skip 2 --steps 5"
            if seen
            else "call stepscope.step() once in each iteration of your loop",
        )
    slowest = max(timed, key=lambda rank: sum(rank["unprofiled_steps_ns"]) / len(rank["unprofiled_steps_ns"]))
    first = min(ranks, key=lambda rank: int(rank["rank"]))
    return Measurement(
        tuple(slowest["unprofiled_steps_ns"]),
        tuple(float(loss) for loss in first.get("losses") or ()),
        tuple(dict.fromkeys(note for rank in ranks for note in rank.get("notes") or ())),
    )


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read
