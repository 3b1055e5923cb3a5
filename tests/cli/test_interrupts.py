"""Ctrl-C and SIGTERM at any moment: the whole answer with exit code 0, or none with 130 or 143."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.trying import some, tries

import stepscope
from stepscope.cli.traces import DEMO

COMMANDS = (
    ("report", str(DEMO)),
    ("check", str(DEMO), "--budget", "finding any = none"),
    ("report", str(DEMO), "--format", "json"),
    ("diff", str(DEMO), str(DEMO)),
    ("query", str(DEMO), "SELECT name, sum(dur_ns) FROM ops GROUP BY name ORDER BY 2 DESC, 1"),
)


class Ended(NamedTuple):
    code: int
    out: bytes
    err: bytes
    left: list[str]
    took_s: float


def run(command: tuple[str, ...], cache: Path, number: int = 0, after_s: float = 0.0) -> Ended:
    """Runs a command with an empty cache and sends a signal after a while."""
    began = time.monotonic()
    environment = {**os.environ, "STEPSCOPE_CACHE": str(cache), "TMPDIR": str(cache.parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "stepscope", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if number:
        time.sleep(after_s)
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    left = [str(one.relative_to(cache.parent)) for one in cache.parent.rglob("*.partial")]
    left += [one.name for one in cache.parent.glob("stepscope-*")]
    return Ended(process.returncode, out, err, left, time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", some([(command,) for command in COMMANDS], 1), ids=lambda command: "-".join(command[::2])[:20]
)
def test_a_signal_at_any_moment(command: tuple[str, ...], tmp_path: Path) -> None:
    whole = run(command, tmp_path / "whole" / "cache")
    dice = random.Random(command[0])
    takes_s, interrupted, attempt = whole.took_s, 0, 0
    while attempt < tries(4) or not interrupted:
        attempt += 1
        number = dice.choice((signal.SIGINT, signal.SIGTERM))
        after_s = max(0.2, dice.uniform(0.25, 1.0) * takes_s)
        (tmp_path / str(attempt)).mkdir()
        found = run(command, tmp_path / str(attempt) / "cache", number, after_s)
        where = f"{number.name} after {after_s:.3f} of {takes_s:.3f} s: {found}"
        if found.code == -number:
            # It had not reached the first line of stepscope yet, and ended as any Python does.
            assert not found.out, where
        elif found.code == whole.code:
            assert found.out == whole.out, where
            takes_s *= 0.8  # the machine is quicker than it was
        else:
            interrupted += 1
            assert found.code == 128 + number, where
            assert whole.out.startswith(found.out), where
            assert not found.err, where
        assert not found.left, where


def test_an_import_is_not_cut_in_two(tmp_path: Path) -> None:
    """Else it may keep locks for which other threads wait for ever."""
    (tmp_path / "slow.py").write_text("""
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
for _ in range(10): time.sleep(0.01)
print("imported", flush=True)
""")
    program = """
import time
from stepscope import interrupts
interrupts.watch()
try:
    import slow
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", interrupts.exit_code())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.stdout.split() == ["imported", "interrupted", "130"], done.stderr


def test_every_catch_all_passes_a_signal_on() -> None:
    handlers = 0
    package = Path(stepscope.__file__).parent
    for file in package.rglob("*.py"):
        if file.is_relative_to(package / "capture") or file == package / "doctor" / "probe.py":
            continue  # in programs of others, signals are not ours
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ExceptHandler) or node.type is None:
                continue
            if ast.unparse(node.type) == "Exception":
                handlers += 1
                first = ast.unparse(node.body[0])
                assert "interrupts." in first, f"{file.name}:{node.lineno} begins with {first}"
    assert handlers
