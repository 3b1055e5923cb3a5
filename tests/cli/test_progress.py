"""The progress line: on a terminal, after the first second, and nowhere else."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest
from tests.commands import PATIENCE_S, SLOW_ITEM, STEPSCOPE, environment, stepscope

from stepscope.cli import progress
from stepscope.cli.progress import ProgressLine


def big(path: Path) -> Path:
    event = '{"ph":"X","cat":"cpu_op","name":"' + "x" * 400 + '","pid":1,"tid":2,"ts":%d,"dur":1}'
    path.write_text("[" + ",\n".join(event % number for number in range(80_000)) + "]")
    return path


def on_a_terminal(command: list[str], env: dict[str, str]) -> tuple[int, bytes]:
    """What a command writes to standard error when that is a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(command, env=env, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    seen, patience = b"", time.monotonic() + PATIENCE_S
    while time.monotonic() < patience:
        if not select.select([ours], [], [], 0.1)[0]:
            if child.poll() is not None:
                break
            continue
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        seen += piece
    os.close(ours)
    return child.wait(timeout=PATIENCE_S), seen


def quiet_for(seconds: int, *args: str) -> list[str]:
    """A command whose quiet second is as long as a test needs it, on a fast machine and on a slow one."""
    code = (
        f"import sys; from stepscope.cli import progress; progress._QUIET_S = {seconds};"
        " from stepscope.cli.main import main; sys.exit(main())"
    )
    return [STEPSCOPE[0], "-c", code, *args]


def test_a_long_reading_on_a_terminal(tmp_path: Path) -> None:
    file = big(tmp_path / "big.json")
    rc, seen = on_a_terminal(quiet_for(0, "info", str(file)), environment(tmp_path / "cache"))
    assert rc == 0
    text = seen.decode()
    assert "reading" in text
    assert "events" in text
    assert "left" in text
    assert text.endswith("\r\x1b[K")
    assert "\n" not in text


def test_a_short_reading_shows_nothing(tmp_path: Path) -> None:
    assert progress._QUIET_S == 1
    command = quiet_for(PATIENCE_S, "info", str(SLOW_ITEM))
    assert on_a_terminal(command, environment(tmp_path)) == (0, b"")


def test_nothing_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = stepscope("info", big(tmp_path / "big.json"), cache=tmp_path / "cache")
    assert (done.returncode, done.stderr) == (0, "")


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """In place of standard error, set inside a test: pytest replaces that stream between its phases."""
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    return found


def test_what_the_line_says(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = terminal(monkeypatch), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    show = ProgressLine()
    show("reading", 0.1, 1 << 20, 5)
    assert screen.text == ""
    now += 2
    show("reading", 0.25, 4 << 20, 1234)
    line = screen.text
    assert "reading  4.00 MiB" in line
    assert "1,234 events" in line
    assert "25.0 %" in line
    assert "6.00 s left" in line
    show("reading", 0.3, 5 << 20, 2000)
    assert screen.text == line
    now += 1
    show("reading", 0.3, 5 << 20, 2000)
    assert "2,000 events" in screen.text
    show("reading", 1.0, 0, 0)
    assert screen.text.endswith("\r\x1b[K")


def test_each_job_has_a_quiet_second_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = terminal(monkeypatch), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    show = ProgressLine()
    show("reading", 0.1, 1 << 20, 5)
    now += 2
    show("nesting", 0.1, 0, 7)
    assert screen.text == ""
    now += 2
    show("nesting", 0.5, 0, 70)
    assert "nesting  70 events  50.0 %" in screen.text


def test_without_a_size_no_time_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setattr(progress, "_QUIET_S", 0)
    ProgressLine()("reading", None, 4 << 20, 1234)
    assert "1,234 events" in screen.text
    assert "left" not in screen.text


def test_a_line_that_was_never_shown_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    ProgressLine()("reading", 1.0, 0, 0)
    assert screen.text == ""
