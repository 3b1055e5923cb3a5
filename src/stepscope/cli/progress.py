"""How far reading has got: one line on a terminal, after the first second, and nothing elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from stepscope import units

if TYPE_CHECKING:
    from stepscope.sources import Progress

__all__ = ["Line"]

_QUIET_S = 1.0
_EVERY_S = 0.1


class Line:
    """Shows bytes, speed, events and the time left; `with` clears the line at the end."""

    def __init__(self, total_bytes: int | None) -> None:
        self._total = total_bytes
        self._began = time.monotonic()
        self._shown = 0.0
        self._written = False

    def __enter__(self) -> Progress | None:
        return self._show if sys.stderr.isatty() else None

    def __exit__(self, *_: object) -> None:
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, compressed: int, text: int, events: int) -> None:
        now = time.monotonic()
        if now - self._began < _QUIET_S or now - self._shown < _EVERY_S:
            return
        self._shown, self._written = now, True
        spent = now - self._began
        line = f"reading  {units.size(text)}  {units.rate(text, spent * 1e9)}  {units.count(events)} events"
        if self._total and compressed:
            left = spent * (self._total - compressed) / compressed
            line += f"  {units.share(compressed / self._total)}, about {units.duration(left * 1e9)} left"
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
