"""How the memory in a snapshot rose and fell."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import (
    BLOCKS,
    EVENTS,
    LEVELS,
    SEGMENTS,
    STATE,
    history_notes,
    missing,
    sql,
)
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["AllocatorPoint", "allocator_curves"]


@dataclass(frozen=True, slots=True)
class AllocatorPoint:
    """What was in use on one device after one event, until the next point or shortly before."""

    device: Annotated[int, "Index of the device."]
    nth: Annotated[int, "Place of the event in the history; -1: before the first."]
    start_ns: Annotated[int | None, "When, in ns since the epoch; NULL where the snapshot has no times."]
    active_bytes: Annotated[int, "In tensors, or freed and still in use by a stream."]
    allocated_bytes: Annotated[int, "In tensors."]
    reserved_bytes: Annotated[int, "Reserved from the driver."]


# Of every stretch of events the lowest and the highest stay, and both ends: no peak is lost.
_SQL = """
    points AS MATERIALIZED (
        SELECT device, -1 AS nth, NULL::BIGINT AS start_ns, active_bytes, allocated_bytes, reserved_bytes
        FROM starts WHERE $history
        UNION ALL
        SELECT device, nth, start_ns, active_bytes, allocated_bytes, reserved_bytes FROM levels),
    spans AS (SELECT device, max(nth) AS last_nth, count(*) AS points FROM points GROUP BY device),
    chosen AS (
        SELECT device, unnest([arg_min(nth, row(active_bytes, nth)), arg_max(nth, row(active_bytes, -nth)),
                               arg_max(nth, row(reserved_bytes, -nth))]) AS nth
        FROM points JOIN spans USING (device)
        GROUP BY device, CASE WHEN spans.points <= $points THEN nth
                              ELSE (nth + 1) * $stretches // (last_nth + 2) END
        UNION SELECT device, -1 FROM spans UNION SELECT device, last_nth FROM spans)
    SELECT device, nth, start_ns, active_bytes, allocated_bytes, reserved_bytes
    FROM points JOIN chosen USING (device, nth) ORDER BY device, nth
"""


@analysis(
    reads={"allocator_events": EVENTS, "allocator_blocks": BLOCKS, "allocator_segments": SEGMENTS},
)
def allocator_curves(
    trace: Trace, *, points: Annotated[int, "how many points at most for a device, 5 or more"] = 200
) -> Table[AllocatorPoint]:
    """Draws the memory of a snapshot's history, counted back from its end, with no peak lost."""
    if points < 5:
        raise StepscopeError(f"{points} points are too few for a curve", hint="--points 5 or more")
    notes = missing(trace) or history_notes(trace)
    if notes:
        return Table.of(AllocatorPoint, (), notes)
    return trace.query(
        AllocatorPoint,
        f"{sql(trace, STATE, LEVELS)}, {_SQL}",
        history=True,
        points=points,
        stretches=(points - 2) // 3,
    )
