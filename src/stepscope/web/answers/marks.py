"""What is drawn over the timeline: steps, phases, idle gaps, collectives, and where findings are seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.analyses._every_gap import gap_boxes
from stepscope.analyses._timeline_marks import collective_boxes, phase_boxes
from stepscope.errors import StepscopeError
from stepscope.findings._sought import steady_steps
from stepscope.findings.showing import shown_of
from stepscope.store.cutting import extent
from stepscope.web.large import one_large_answer
from stepscope.web.numbers import whole

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.web.opened import Opened, OpenTrace

__all__ = ["marks"]

_PARTS = ("steps", "phases", "gaps", "collectives", "findings")
_MOST_PIXELS = 8192


def marks(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """The `parts` of a window of `pixels` between `from` and `to`; findings need the report."""
    one = opened.trace(given.get("trace"))
    trace = one.trace
    first, last = trace.once("extent", lambda: extent(trace.reading(None)))
    since, until = whole(given, "from", first), whole(given, "to", last)
    pixels = min(whole(given, "pixels", 1000, least=1), _MOST_PIXELS)
    pixel_ns = max((until - since) // pixels, 1)
    wanted = given.get("parts", ",".join(_PARTS[:4])).split(",")
    if unknown := [name for name in wanted if name not in _PARTS]:
        raise StepscopeError(f"there is no part {unknown[0]!r}", hint=f"parts={','.join(_PARTS)}")
    found: dict[str, Any] = {"base_ns": str(trace.meta.base_ns), "first_ns": first, "last_ns": last}
    window = (since, until, pixel_ns)
    if "steps" in wanted:
        found["steps"] = _steps(trace)
    if "phases" in wanted:
        found["phases"] = phase_boxes(trace, *window) if trace.has("ops") else []
    if "gaps" in wanted:
        found["gaps"] = _gaps(trace, *window) if trace.has("device_work") else {}
    if "collectives" in wanted:
        found["collectives"] = collective_boxes(trace, *window) if trace.has("device_work") else []
    if "findings" in wanted:
        found["findings"] = _findings(one)
    return found


def _steps(trace: Trace) -> list[dict[str, Any]]:
    rows, cold = steady_steps(trace)
    return [{**row, "warm_up": cold and place == 0} for place, row in enumerate(rows)]


def _gaps(trace: Trace, since: int, until: int, pixel_ns: int) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    made: set[str] = trace.once("what was waited for", set)
    with one_large_answer(trace):
        boxes = gap_boxes(trace, since, until, pixel_ns)
    for box in boxes:
        found.setdefault(box.pop("device"), []).append(box)
    made.add("every gap")
    return found


def _findings(one: OpenTrace) -> list[dict[str, Any]]:
    return [
        {
            "id": finding.id,
            "title": finding.advice.title,
            "severity": finding.severity,
            "shown": [dataclasses.asdict(shown) for shown in shown_of(one.trace, finding)],
        }
        for finding in one.report().findings
    ]
