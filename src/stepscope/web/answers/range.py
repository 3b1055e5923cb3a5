"""What happened in a stretch of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.analyses._range_totals import calls_in, device_totals, steps_in, thread_totals
from stepscope.errors import StepscopeError
from stepscope.findings.build import MANY_EVENTS
from stepscope.web.large import one_large_answer
from stepscope.web.numbers import whole, wholes

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["range"]

_MOST_STEPS = 100
_MANY_CALLS = 500_000


def range(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:  # noqa: A001  # the name of the answer
    """Devices and threads between `from` and `to`, of all `tracks` or of some; `wait=1` has gaps divided."""
    trace = opened.trace(given.get("trace")).trace
    since, until = whole(given, "from"), whole(given, "to")
    if until <= since:
        raise StepscopeError("the range is empty", hint=f"from={since}&to={since + 1_000_000}")
    tracks = wholes(given, "tracks")
    made: set[str] = trace.once("what was waited for", set)
    causes = given.get("wait") == "1" or trace.is_small or "every gap" in made
    if causes:
        made.add("every gap")
    steps = steps_in(trace, since, until)
    # The calls of a whole large trace take seconds to nest: they are waited for on request.
    threads = given.get("wait") == "1" or calls_in(trace, since, until) <= _MANY_CALLS
    pending = [] if causes or tracks is not None else ["idle"]
    with one_large_answer(trace, MANY_EVENTS):
        devices = device_totals(trace, since, until, tracks, causes=causes)
        totals = thread_totals(trace, since, until, tracks) if threads else None
    return {
        "from": since,
        "to": until,
        "range_ns": until - since,
        "steps": steps[:_MOST_STEPS],
        "steps_count": len(steps),
        "devices": devices,
        "threads": totals,
        "pending": pending if threads else [*pending, "threads"],
    }
