"""The ends of a program: whatever ends it, what was recorded is kept first, and the end stays its own."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

__all__ = ["Endings"]

_KILLING = (signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send; these end a program that has no handler of its own at once."""


class Endings:
    """Has `finish` called before the process ends, as far as Python can."""

    def __init__(
        self, finish: Callable[[], None], forked: Callable[[], None], *, in_code: bool = False
    ) -> None:
        """`in_code`: the program ends the capture itself; exits and signals stay as they are."""
        self._finish = finish
        self._in_code = in_code
        self._told_of_fork = forked
        self._exit = os._exit
        self._pid = os.getpid()
        self._handled: list[signal.Signals] = []
        self._at_work = False
        self._kept_back: int | None = None

    def install(self) -> None:
        """From now on, every end of the program calls `finish` first."""
        atexit.register(self._finish)
        forked = weakref.WeakMethod(self._forked)  # there is no way to take it out again
        os.register_at_fork(after_in_child=lambda: (told := forked()) and told())
        if not self._in_code:
            os._exit = self._exiting  # type: ignore[assignment]

    def hold_signals(self) -> None:
        """Has signals that would end the program at once call `finish` first."""
        if self._in_code or threading.current_thread() is not threading.main_thread():
            return  # only the main thread may say what signals do
        for number in _KILLING:
            # A handler of the program itself decides what happens, as it would without us.
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._killed)
                self._handled.append(number)

    def remove(self) -> None:
        """Takes everything out again, but for what Python does at its end."""
        if os._exit == self._exiting:
            os._exit = self._exit
        if threading.current_thread() is threading.main_thread():
            for number in self._handled:
                if signal.getsignal(number) == self._killed:
                    signal.signal(number, signal.SIG_DFL)
        self._handled.clear()

    def begin_work(self) -> None:
        """The capture works in the program's thread: a signal waits until it is done.

        What it holds meanwhile, the end of the program would wait for: it could never get it.
        """
        self._at_work = True

    def end_work(self) -> None:
        """The capture is done: a signal that came meanwhile ends the program now."""
        self._at_work = False
        number, self._kept_back = self._kept_back, None
        if number is not None:
            self._end_by(number)

    def forget(self) -> None:
        """Has Python's end not call `finish` any more."""
        atexit.unregister(self._finish)

    def _exiting(self, code: int) -> NoReturn:
        """What `os._exit` does while we record: it runs nothing else."""
        if os.getpid() == self._pid:
            self._finish()
        self._exit(code)

    def _killed(self, number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the program at once
        if self._at_work:
            self._kept_back = number
        else:
            self._end_by(number)

    def _end_by(self, number: int) -> None:
        if os.getpid() == self._pid:
            self._finish()
        os.kill(os.getpid(), number)

    def _forked(self) -> None:
        """A child of the program, such as a worker of a loader, is not recorded and ends as it likes."""
        self.remove()
        self._told_of_fork()
