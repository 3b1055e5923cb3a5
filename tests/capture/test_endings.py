"""What ends a program while the capture works in it."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal
from stepscope.capture.endings import Endings

endings = Endings(lambda: print("kept", flush=True), lambda: None)
endings.hold_signals()
endings.begin_work()
os.kill(os.getpid(), signal.SIGTERM)
print("at work", flush=True)
{second}
endings.end_work()
print("not reached", flush=True)
"""


def _ran(second: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(second=second)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_signal_waits_until_the_capture_is_done() -> None:
    """The end waits for what the capture holds: in the middle of its work, for ever."""
    ended = _ran("")
    assert ended.stdout == "at work\nkept\n"
    assert ended.returncode == -signal.SIGTERM


def test_a_second_signal_does_not_wait() -> None:
    ended = _ran("os.kill(os.getpid(), signal.SIGTERM)")
    assert ended.stdout == "at work\n"
    assert ended.returncode == -signal.SIGTERM
