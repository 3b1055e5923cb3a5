"""Why devices were idle: what they waited for, and which blocking call had drained the queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._blame import BLAME_READS, Caller, callers
from stepscope.analyses._idle import (
    CAUSES,
    IDLE_READS,
    GapPart,
    Idle,
    Side,
    SpentIn,
    Window,
    idle_time,
    side_of,
)
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Reads, Trace
from stepscope.tables import Table

__all__ = ["IdleGap", "Side", "SpentIn", "idle_gaps"]


@dataclass(frozen=True, slots=True)
class IdleGap:
    """Idle time of one device that has one cause; with `longest`, one gap and what took most of it."""

    device: Annotated[str, "The device, by its index."]
    window: Annotated[str, "steps: inside the steps; span: from the first start to the last end of its work."]
    side: Annotated[str, "What was waited for: host, launch, device, or unknown."]
    spent_in: Annotated[
        str, "What the launching thread did until it launched, or why work waited that was launched before."
    ]
    drained_by: Annotated[
        str | None,
        "Blocking call, open when the gap began, that had drained the queue; NULL if none was.",
    ]
    gaps: Annotated[int, "Number of gaps with such a part."]
    idle_ns: Annotated[int, "The sum of these parts; over all rows of a device, its idle time in the window."]
    share: Annotated[float | None, "Share of the idle time of the device in the window."]
    longest_ns: Annotated[int, "The longest of these parts; what follows is about its gap."]
    start_ns: Annotated[int | None, "When that gap began; NULL if it began with the window."]
    step: Annotated[int | None, "Step in which that gap ended."]
    before: Annotated[str | None, "What ran last before it."]
    after: Annotated[str | None, "What ended it; NULL if nothing did."]
    blame: Annotated[str | None, "The draining call, or else the launch that ended it, with its operators."]
    user_frame: Annotated[
        str | None, "Function of the user's code that made this call; needs with_stack=True."
    ]


_READS: Reads = {
    **BLAME_READS,
    **IDLE_READS,
    "launches": tuple({*IDLE_READS["launches"], *BLAME_READS["launches"]}),
}
_ENDED = """
    SELECT w.event, w.name AS after, w.launch, g.start_ns, b.name AS before, s.step
    FROM device_work w LEFT JOIN gaps g ON g.after = w.event LEFT JOIN device_work b ON b.event = g.before
    LEFT JOIN steps s ON w.start_ns >= s.start_ns AND w.start_ns < s.end_ns
    WHERE list_contains($events, w.event)
"""


@analysis(reads=_READS)
def idle_gaps(
    trace: Trace,
    *,
    window: Annotated[Window, "idle time inside the steps, or from first to last work"] = "steps",
    longest: Annotated[int, "list this many of the longest single gaps instead"] = 0,
) -> Table[IdleGap]:
    """Says why devices were idle: starved by the host, launch latency, other work; and what drained them.

    A gap is a time in which nothing ran on a device. If the launch that ended it began after the gap did,
    the device was starved: this time is charged to what the launching thread did until then, and the rest
    is launch latency. If the launch was made before the gap, the work waited on the device. A blocking call
    that was open when the gap began had drained the queue, whatever the host did afterwards.
    """
    idle = idle_time(trace, window, max(longest, 0))
    totals: dict[str, int] = {}
    for part in idle.parts:
        totals[part.device] = totals.get(part.device, 0) + part.idle_ns
    parts = _single(idle) if longest > 0 else sorted(idle.parts, key=_order)
    return Table.of(IdleGap, _rows(trace, window, parts, totals), _notes(trace, window, idle, totals))


def _order(part: GapPart) -> tuple[str, int, int, str]:
    return part.device, -part.idle_ns, part.cause, part.drained_by or ""


def _single(idle: Idle) -> list[GapPart]:
    """The longest gaps, each as a part of its own."""
    names = dict(zip(idle.waits["event"].to_pylist(), idle.waits["name"].to_pylist(), strict=True))
    return [
        GapPart(
            device=row["device"],
            cause=row["cause"],
            drained_by=names.get(row["drained"]),
            gaps=1,
            idle_ns=row["idle_ns"],
            longest_ns=row["idle_ns"],
            after=row["after"],
            drained=row["drained"],
        )
        for row in idle.longest.to_pylist()
    ]


def _rows(trace: Trace, window: str, parts: list[GapPart], totals: dict[str, int]) -> Iterable[IdleGap]:
    events = sorted({part.after for part in parts if part.after is not None})
    ended = {row["event"]: row for row in trace.rows(_ENDED, events=events)} if events else {}
    calls = {part.drained for part in parts} | {row["launch"] for row in ended.values()}
    who = callers(trace, {call for call in calls if call is not None})
    for part in parts:
        gap = ended.get(part.after, {}) if part.after is not None else {}
        caller = who.get(part.drained if part.drained is not None else gap.get("launch", -1))
        yield _row(part, window, gap, caller, totals)


def _row(
    part: GapPart, window: str, gap: dict[str, Any], caller: Caller | None, totals: dict[str, int]
) -> IdleGap:
    return IdleGap(
        device=part.device,
        window=window,
        side=side_of(part.cause).value,
        spent_in=CAUSES[part.cause].value,
        drained_by=part.drained_by,
        gaps=part.gaps,
        idle_ns=part.idle_ns,
        share=part.idle_ns / totals[part.device] if totals[part.device] else None,
        longest_ns=part.longest_ns,
        start_ns=gap.get("start_ns"),
        step=gap.get("step"),
        before=gap.get("before"),
        after=gap.get("after"),
        blame=f"{caller.chain} → {units.duration(part.longest_ns)}" if caller else None,
        user_frame=caller.user_frame if caller else None,
    )


def _notes(trace: Trace, window: str, idle: Idle, totals: dict[str, int]) -> list[str]:
    if not totals:
        return ["No device was idle." if trace.has("device_work") else "No device work in the profile."]
    notes = [
        f"{units.count(idle.gaps)} gaps; one gap may have parts in several rows.",
        *(f"Device {device} was idle for {units.duration(total)}." for device, total in totals.items()),
    ]
    return notes + (how_steps_were_found(trace) if window == "steps" else [])
