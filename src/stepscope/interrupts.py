"""Ctrl-C and SIGTERM: noted once, passed on by every catch-all, and the last word on the exit code.

A database that is interrupted raises an error like any other. Whoever catches errors, to go on without a
part, would go on without that part and print a wrong report. What is noted here cannot be caught away.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import weakref
from types import FrameType
from typing import Any, Protocol

__all__ = ["caught", "exit_code", "interruptible", "pass_on", "unwatch", "watch"]


class Interruptible(Protocol):
    """What works for long outside Python and can be told to stop, from any thread."""

    def interrupt(self) -> None:
        """Stops what it does, which then fails."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IMPORTING = "<frozen importlib."
_SOON_S = 0.01
_caught: list[int] = []
_working: weakref.WeakSet[Interruptible] = weakref.WeakSet()


def watch() -> None:
    """From now on these signals are noted, raise KeyboardInterrupt in the main thread, and stop databases.

    The main thread notices a signal only when it is back in Python. A thread that waits for signals does not
    have to wait for that, and a second signal ends the process at once.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for one in _SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:  # as under nohup
            signal.signal(one, _note)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _raise)
    threading.Thread(target=_stop, args=(reading,), name="stepscope-signals", daemon=True).start()
    sys.unraisablehook = _unraisable


def unwatch() -> None:
    """The answer is out: what comes while the process ends is too late to change its exit code."""
    for one in (*_SIGNALS, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else [])):
        signal.signal(one, signal.SIG_IGN)


def interruptible(working: Interruptible) -> None:
    """A signal shall stop this too, for as long as it exists."""
    _working.add(working)


def caught() -> bool:
    """Whether a signal came."""
    return bool(_caught)


def exit_code() -> int:
    """The exit code of a command that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (_caught[0] if _caught else signal.SIGINT)


def pass_on() -> None:
    """Raises KeyboardInterrupt if a signal came. Every catch-all calls it before anything else."""
    if _caught:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    _caught.append(number)
    _raise(number, frame)


def _raise(_number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but not in the middle of an import: then as soon as that is done.

    An import that is interrupted may keep its locks, for which other threads then wait for ever. And a
    library in C++ that is being loaded ends the process if Python raises something within.
    """
    while frame is not None and hasattr(signal, "setitimer"):
        if frame.f_code.co_filename.startswith(_IMPORTING):
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _stop(reading: int) -> None:
    seen = 0
    while number := os.read(reading, 1)[0]:
        if number not in _SIGNALS:
            continue
        seen += 1
        if seen > 1:
            os._exit(128 + number)
        for one in list(_working):
            one.interrupt()


def _unraisable(problem: Any) -> None:
    """Where Python cannot raise, as in a destructor, it would print instead; the signal is noted already."""
    if not _caught:
        sys.__unraisablehook__(problem)
