"""What memory did in each step."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._memory import COLUMNS, EVENTS, STEP_COLUMNS, STEPS, missing
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MemoryStep", "memory_steps"]


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """The memory of one device in one step, from the start of its mark on the host to its end."""

    device: Annotated[str, "The device by its index, or cpu."]
    step: Annotated[int, "Number of the step."]
    start_bytes: Annotated[int, "Allocated when its mark began."]
    end_bytes: Annotated[int, "Allocated when its mark ended."]
    growth_bytes: Annotated[int, "The difference of the two."]
    peak_bytes: Annotated[int, "The most that was allocated in between."]
    allocations: Annotated[int, "Number of allocations."]
    allocated_bytes: Annotated[int, "How much was asked for in all."]
    frees: Annotated[int, "Number of frees."]
    freed_bytes: Annotated[int, "How much was given back in all."]
    reserved_end_bytes: Annotated[int | None, "What the allocator held at its end; NULL for the host."]
    unused_end_bytes: Annotated[int | None, "Reserved minus allocated at its end."]


# What was allocated before any event is known from the first one after.
_SQL = f"""
    WITH {EVENTS}, {STEPS},
    firsts AS (
        SELECT device_name, first(allocated_bytes - bytes ORDER BY nth) AS first_bytes,
               first(reserved_bytes ORDER BY nth) AS first_reserved
        FROM changes GROUP BY device_name),
    during AS (
        SELECT device_name, place, count(*) FILTER (bytes > 0) AS allocations,
               coalesce(sum(bytes) FILTER (bytes > 0), 0)::BIGINT AS asked,
               count(*) FILTER (bytes < 0) AS frees,
               coalesce(-sum(bytes) FILTER (bytes < 0), 0)::BIGINT AS freed, max(allocated_bytes) AS highest
        FROM changes ASOF JOIN marks ON start_ns >= host_start_ns
        WHERE start_ns < host_end_ns GROUP BY device_name, place),
    ended AS (
        SELECT firsts.device_name, marks.*, coalesce(early.allocated_bytes, first_bytes) AS start_bytes,
               coalesce(late.allocated_bytes, first_bytes) AS end_bytes,
               coalesce(late.reserved_bytes, first_reserved) AS reserved_bytes
        FROM firsts CROSS JOIN marks
        LEFT JOIN before b ON b.device_name = firsts.device_name AND b.cut = host_start_ns
        LEFT JOIN before e ON e.device_name = firsts.device_name AND e.cut = host_end_ns
        LEFT JOIN changes early ON early.nth = b.nth LEFT JOIN changes late ON late.nth = e.nth)
    SELECT device_name AS device, step, start_bytes, end_bytes, end_bytes - start_bytes AS growth_bytes,
           greatest(start_bytes, coalesce(highest, start_bytes)) AS peak_bytes,
           coalesce(allocations, 0) AS allocations, coalesce(asked, 0) AS allocated_bytes,
           coalesce(frees, 0) AS frees, coalesce(freed, 0) AS freed_bytes,
           reserved_bytes AS reserved_end_bytes, reserved_bytes - end_bytes AS unused_end_bytes
    FROM ended LEFT JOIN during USING (device_name, place) ORDER BY device, place
"""


@analysis(reads={"memory_events": COLUMNS, "steps": STEP_COLUMNS})
def memory_steps(trace: Trace) -> Table[MemoryStep]:
    """Says for each step what was allocated at its start, its end and its peak, and how much was churned."""
    if notes := missing(trace):
        return Table.of(MemoryStep, (), notes)
    found = trace.arrow(_SQL)
    nothing = [] if found.num_rows else ["No steps: the profile holds nothing but memory events."]
    return Table(MemoryStep, found, [*nothing, *how_steps_were_found(trace)])
