"""The progress of a long job: one line on a terminal after the first second, nothing elsewhere."""

from __future__ import annotations

import os
import sys
import time

from stepscope import units
from stepscope.present._printable import Styled, printable

__all__ = ["ProgressLine"]

_QUIET_S = 1.0
_EVERY_S = 0.1
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Shows bytes, speed, events and the time left; the line goes away when the job is done."""

    def __init__(self) -> None:
        self._doing = ""
        self._began = self._shown = 0.0
        self._written = False

    def __call__(self, doing: str, done: float | None, n_bytes: int, events: int) -> None:
        """A job is so far: the done share of it if that is known, 1 at its end."""
        now = time.monotonic()
        if doing != self._doing:
            self._doing, self._began = doing, now
        if done == 1:
            self.clear()
            return
        if not _is_shown() or now - self._began < _QUIET_S or now - self._shown < _EVERY_S:
            return
        self._shown, self._written = now, True
        spent = (now - self._began) * 1e9
        parts = [doing, units.size(n_bytes), units.rate(n_bytes, spent)] if n_bytes else [doing]
        if events or not done:
            parts.append(f"{units.count(events)} events")
        if done:
            parts.append(f"{units.share(done)}, about {units.duration(spent * (1 - done) / done)} left")
        sys.stderr.write(Styled(_ERASE + printable("  ".join(parts))))
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        self._doing = ""
        if self._written:
            sys.stderr.write(Styled(_ERASE))
            sys.stderr.flush()
            self._written = False


def _is_shown() -> bool:
    """Whether somebody looks, at a terminal that can take a line away again."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
