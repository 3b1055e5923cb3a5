"""Slow steps: records all the time, and keeps a recording only if a step in it was slower than usual."""

from __future__ import annotations

import statistics
import time
from collections import deque

from stepscope.capture.passes import Passes, is_profiling
from stepscope.capture.plan import Plan
from stepscope.capture.recording import Recording
from stepscope.capture.run_folder import RankFile
from stepscope.capture.settings import Settings

__all__ = ["SlowSteps"]

SLOWER = 1.5
"""A step that takes so many times as long as the usual recorded one is slow."""
_BEFORE = (4, 6, 3, 5)
"""How many steps before a slow one a recording has at most, by turns."""
_USUAL = 50
_KNOWN_AFTER = 5
_MOST_KEPT = 3


class SlowSteps(Passes):
    """After the unprofiled pass, records in short windows until some slow steps were kept.

    A window is thrown away when it is full and had no slow step in it; the next one begins at once. What a
    window costs at its ends is part of no step.
    """

    def __init__(self, settings: Settings, plan: Plan, file: RankFile) -> None:
        super().__init__(settings, plan, file)
        self._usual_ns: deque[int] = deque(maxlen=_USUAL)
        self._began_ns = 0
        self._kept = 0
        self._window: Recording | None = None
        self._before = _BEFORE[0]

    def step_ended(self, at: int) -> bool:
        """A step has ended: keeps the window if it was slow."""
        if not super().step_ended(at):
            return False
        window = self._window
        if window is not None:
            took = time.perf_counter_ns() - self._began_ns
            window.step_ended()
            slow = len(self._usual_ns) >= _KNOWN_AFTER and took > SLOWER * statistics.median(self._usual_ns)
            self._usual_ns.append(took)
            if slow:
                self._keep_window(window, took)
            elif window.steps > self._before or window.too_large(self._before):
                window.abandon()
                self._window = None
            else:
                window.next_step()
        if self._kept >= _MOST_KEPT:
            return True
        if self._window is None and not is_profiling():
            # Of other lengths, or every step that is slow by the clock would be the first of a window.
            self._before = _BEFORE[(_BEFORE.index(self._before) + 1) % len(_BEFORE)]
            self._window = Recording("slow", self._settings)
            self._window.attach()
            self._window.start(at)
        self._began_ns = time.perf_counter_ns()
        return False

    def end(self) -> None:
        """The program ends: a window without a slow step is not kept."""
        window, self._window = self._window, None
        if window is not None:
            window.abandon()
        if not self._kept:
            self._file.note(f"No step took {SLOWER} times as long as usual, so none was kept.")
        super().end()

    def give_up(self) -> None:
        """Ends what is being recorded and keeps nothing of it."""
        window, self._window = self._window, None
        if window is not None:
            window.abandon()
        super().give_up()

    def _keep_window(self, window: Recording, took: int) -> None:
        usual = statistics.median(self._usual_ns)
        self._file.note(
            f"Step {window.first_step + window.steps - 1} took {took / 1e6:.3g} ms, "
            f"the usual one {usual / 1e6:.3g} ms."
        )
        self._kept += 1
        self._window = None
        self._keep(window, name=f"slow{self._kept}", beside=True)
