"""What the caching allocator of each device held: at the end of a snapshot's history, and at its peak."""

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
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Allocator", "allocators"]


@dataclass(frozen=True, slots=True)
class Allocator:
    """The allocator of one device, as a snapshot has it."""

    device: Annotated[int, "Index of the device."]
    reserved_bytes: Annotated[int, "Reserved from the driver at the end."]
    allocated_bytes: Annotated[int, "In tensors at the end."]
    active_bytes: Annotated[int, "In tensors at the end, or freed and still in use by a stream."]
    requested_bytes: Annotated[int | None, "What the program asked for, of what is in tensors at the end."]
    live_blocks: Annotated[int, "Blocks in tensors at the end."]
    segments: Annotated[int, "Segments reserved at the end."]
    events: Annotated[int, "Events of its history."]
    start_bytes: Annotated[int | None, "Active before the first event, counted back; NULL without a history."]
    start_reserved_bytes: Annotated[int | None, "Reserved before the first event."]
    peak_bytes: Annotated[int | None, "The most that was active at any time."]
    peak_nth: Annotated[int | None, "Event after which that was first reached; -1: before the first."]
    peak_after_ns: Annotated[int | None, "When that was, after the first event with a time."]
    reserved_at_peak_bytes: Annotated[int | None, "Reserved at that time."]
    reserved_peak_bytes: Annotated[int | None, "The most that was reserved at any time."]
    failures: Annotated[int, "Allocations that failed."]
    awaiting_blocks: Annotated[int, "Blocks that are freed, but that a stream still uses at the end."]
    awaiting_bytes: Annotated[int, "Their size: active, and in no tensor."]


_SQL = """
    counts AS (
        SELECT device, count(*) AS events, count(*) FILTER (action = 'oom') AS failures,
               min(start_ns) AS first_ns
        FROM allocator_events GROUP BY device),
    held AS (
        SELECT device, count(*) FILTER (allocated) AS live_blocks,
               sum(requested_bytes) FILTER (allocated)::BIGINT AS requested_bytes,
               count(*) FILTER (active AND NOT allocated) AS awaiting_blocks
        FROM state GROUP BY device),
    pieces AS (
        SELECT coalesce(device, 0) AS device, count(*) AS segments FROM allocator_segments GROUP BY 1),
    most AS (SELECT device, max(reserved_bytes) AS reserved_bytes FROM levels GROUP BY device)
    SELECT ends.device, ends.reserved_bytes, ends.allocated_bytes, ends.active_bytes, requested_bytes,
           coalesce(live_blocks, 0) AS live_blocks, coalesce(segments, 0) AS segments,
           coalesce(events, 0) AS events,
           CASE WHEN $history THEN starts.active_bytes END AS start_bytes,
           CASE WHEN $history THEN starts.reserved_bytes END AS start_reserved_bytes,
           CASE WHEN $history THEN peak_bytes END AS peak_bytes,
           CASE WHEN $history THEN peak_nth END AS peak_nth, levels.start_ns - first_ns AS peak_after_ns,
           CASE WHEN $history THEN coalesce(levels.reserved_bytes, starts.reserved_bytes) END
               AS reserved_at_peak_bytes,
           CASE WHEN $history THEN greatest(most.reserved_bytes, starts.reserved_bytes) END
               AS reserved_peak_bytes,
           coalesce(failures, 0) AS failures, coalesce(awaiting_blocks, 0) AS awaiting_blocks,
           ends.active_bytes - ends.allocated_bytes AS awaiting_bytes
    FROM ends JOIN starts USING (device) JOIN peaks USING (device) LEFT JOIN counts USING (device)
    LEFT JOIN held USING (device) LEFT JOIN pieces USING (device) LEFT JOIN most USING (device)
    LEFT JOIN levels ON levels.device = ends.device AND levels.nth = peak_nth
    ORDER BY ends.device
"""


@analysis(
    reads={
        "allocator_events": EVENTS,
        "allocator_blocks": BLOCKS,
        "allocator_segments": SEGMENTS,
    }
)
def allocators(trace: Trace) -> Table[Allocator]:
    """Sums up each device's caching allocator, of a snapshot: what it held at the end, and at the peak."""
    if notes := missing(trace):
        return Table.of(Allocator, (), notes)
    history = not history_notes(trace)
    found = trace.query(Allocator, f"{sql(trace, STATE, LEVELS)}, {_SQL}", history=history)
    return found.with_notes(history_notes(trace))
