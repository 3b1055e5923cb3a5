"""Curves beside the timeline: how busy devices are, memory, queues, clocks and power."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.analyses._counter_tracks import Frame, curves
from stepscope.errors import StepscopeError
from stepscope.store.cutting import extent
from stepscope.web.large import one_large_answer
from stepscope.web.numbers import whole

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["counters"]

_MOST_PIXELS = 4096


def counters(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """Lowest, mean and highest value of every curve in each of `pixels` between `from` and `to`."""
    trace = opened.trace(given.get("trace")).trace
    first, last = trace.once("extent", lambda: extent(trace.reading(None)))
    since, until = whole(given, "from", first), whole(given, "to", last)
    if until <= since:
        raise StepscopeError("the range is empty", hint=f"from={since}&to={since + 1_000_000}")
    pixels = min(whole(given, "pixels", 1000, least=1), _MOST_PIXELS)
    frame = Frame(since, -(-(until - since) // pixels), pixels)
    with one_large_answer(trace):
        series = [{**dataclasses.asdict(one), "hold": False} for one in curves(trace, frame)]
    return {"from": since, "to": until, "pixel_ns": frame.pixel_ns, "pixels": pixels, "series": series}
