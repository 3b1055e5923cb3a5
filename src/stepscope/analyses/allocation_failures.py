"""Why an allocation failed."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import EVENTS, LIFE_READS, history_notes, lives_sql, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["AllocationFailure", "allocation_failures"]


@dataclass(frozen=True, slots=True)
class AllocationFailure:
    """One allocation that failed for lack of memory, and who held the memory then."""

    device: Annotated[int, "Index of the device."]
    nth: Annotated[int, "Place of the event in the history."]
    start_ns: Annotated[int | None, "When, in ns since the epoch."]
    asked_bytes: Annotated[int | None, "What was asked for."]
    device_free_bytes: Annotated[int | None, "Free on the device then, outside of the allocator."]
    active_bytes: Annotated[int | None, "In use then; NULL where it cannot be counted back."]
    reserved_bytes: Annotated[int | None, "Reserved then."]
    unused_bytes: Annotated[int | None, "Reserved and not in use: no free block of it was large enough."]
    site: Annotated[str | None, "Line of code that asked."]
    holder_rank: Annotated[int | None, "1: the largest holder of memory then, and so on, up to 5."]
    holder_site: Annotated[str | None, "Line of code that allocated what it holds; NULL: no stack."]
    holder_category: Annotated[str | None, "What it seems to be, as in allocator_peaks."]
    holder_bytes: Annotated[int | None, "How much it held."]


_SQL = """
    failed AS MATERIALIZED (
        SELECT device, nth, start_ns, bytes AS asked_bytes, free_bytes AS device_free_bytes, stack
        FROM allocator_events WHERE action = 'oom' ORDER BY device, nth LIMIT 50),
    held AS (
        SELECT failed.device, failed.nth, kinds.site, category, sum(kinds.bytes)::BIGINT AS bytes
        FROM failed JOIN kinds ON kinds.device = failed.device AND coalesce(made_nth, -1) < failed.nth
                              AND (freed_nth IS NULL OR freed_nth > failed.nth)
        WHERE $history GROUP BY ALL),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY device, nth ORDER BY bytes DESC, site, category) AS place
        FROM held QUALIFY place <= 5)
    SELECT failed.device, failed.nth, failed.start_ns, asked_bytes, device_free_bytes,
           CASE WHEN $history THEN coalesce(levels.active_bytes, starts.active_bytes) END AS active_bytes,
           CASE WHEN $history THEN coalesce(levels.reserved_bytes, starts.reserved_bytes) END
               AS reserved_bytes,
           CASE WHEN $history THEN coalesce(levels.reserved_bytes - levels.active_bytes,
               starts.reserved_bytes - starts.active_bytes) END AS unused_bytes, sites.site,
           ranked.place AS holder_rank, ranked.site AS holder_site, category AS holder_category,
           ranked.bytes AS holder_bytes
    FROM failed JOIN starts USING (device) LEFT JOIN sites ON sites.stack = failed.stack
    LEFT JOIN ranked ON ranked.device = failed.device AND ranked.nth = failed.nth
    ASOF LEFT JOIN levels ON levels.device = failed.device AND levels.nth <= failed.nth
    ORDER BY failed.device, failed.nth, holder_rank
"""


@analysis(
    reads={
        **LIFE_READS,
        "allocator_events": (*EVENTS, "free_bytes"),
    }
)
def allocation_failures(trace: Trace) -> Table[AllocationFailure]:
    """Says of every allocation that failed what was asked, what was free, and who held the most memory."""
    if notes := missing(trace):
        return Table.of(AllocationFailure, (), notes)
    if not trace.rows("SELECT 1 FROM allocator_events WHERE action = 'oom' LIMIT 1"):  # all else is expensive
        none = ("No allocation failed in the history.",)
        return Table.of(AllocationFailure, (), (*none, *history_notes(trace)))
    parts = lives_sql(trace)
    found = trace.query(AllocationFailure, f"{parts}, {_SQL}", history=not history_notes(trace))
    return found.with_notes(history_notes(trace))
