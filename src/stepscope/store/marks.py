"""What tells one step from the next."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.records import dataclass

__all__ = ["LEAST_SHARE", "LEAST_TIMES", "MOST_STEPS", "Mark", "numbered"]

MOST_STEPS = 1 << 16
"""Each step is looked at by itself, and a recording has tens: what comes after so many is left out."""

LEAST_TIMES = 3
"""How often something has to come to be believed to repeat."""
LEAST_SHARE = 0.8
"""How much of a trace it has to explain."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What marks a step on the host; times are those of the store."""

    step: int
    name: str | None
    source: str
    start_ns: int
    end_ns: int
    thread: int | None = None
    is_window: bool = False
    """Whether the step is just that, and not what the host asked the device for in this time."""


def numbered(source: str, ranges: Iterable[tuple[str | None, int, int]], thread: int | None) -> list[Mark]:
    """Marks without a number of their own, counted from 0; without a thread they are on the device."""
    return [
        Mark(step, name, source, start, end, thread, is_window=thread is None)
        for step, (name, start, end) in enumerate(ranges)
    ]
