"""How much memory each device held, and whether it grows from step to step."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._memory import COLUMNS, EVENTS, STEP_COLUMNS, STEPS, missing
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["DeviceMemory", "memory"]


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device over the whole profile."""

    device: Annotated[str, "The device by its index, or cpu."]
    allocations: Annotated[int, "Number of allocations."]
    frees: Annotated[int, "Number of frees."]
    first_bytes: Annotated[int, "Allocated before the first of these."]
    last_bytes: Annotated[int, "Allocated after the last of these."]
    peak_bytes: Annotated[int, "The most that was allocated at any time."]
    peak_ns: Annotated[int, "When that was first reached, in ns since the epoch."]
    peak_step: Annotated[int | None, "Step in whose mark that was; NULL outside of all."]
    reserved_peak_bytes: Annotated[int | None, "The most that the allocator held; NULL for the host."]
    unused_at_peak_bytes: Annotated[int | None, "Reserved minus allocated at the peak."]
    unused_at_end_bytes: Annotated[int | None, "Reserved minus allocated after the last event."]
    steps: Annotated[int, "Steps at whose end the memory is known."]
    growth_bytes: Annotated[int | None, "Allocated at the end of the last step minus that of the first."]
    growth_per_step_bytes: Annotated[
        float | None, "Slope of the least squares line through the ends of the steps; NULL under two steps."
    ]


@analysis(reads={"memory_events": COLUMNS, "steps": STEP_COLUMNS})
def memory(trace: Trace) -> Table[DeviceMemory]:
    """Sums up the memory of each device: peak, what was reserved beyond it, growth per step."""
    if notes := missing(trace):
        return Table.of(DeviceMemory, (), notes)
    table = trace.query(DeviceMemory, _SQL)
    return table.with_notes((*how_steps_were_found(trace), *_failed(trace)))


# A step ends for memory when its mark ends on the host: that is where memory is asked for and given back.
_SQL = f"""
    WITH {EVENTS}, {STEPS},
    ends AS (
        SELECT device_name, count(*) AS steps, first(allocated_bytes ORDER BY place) AS first_end,
               last(allocated_bytes ORDER BY place) AS last_end,
               (count(*) * sum(place * over_bytes) - sum(place) * sum(over_bytes))
                   / nullif(count(*) * sum(place * place) - sum(place) * sum(place), 0)::DOUBLE AS slope
        FROM (
            SELECT before.device_name, place::HUGEINT AS place, allocated_bytes,
                   allocated_bytes - min(allocated_bytes) OVER (PARTITION BY before.device_name) AS over_bytes
            FROM marks JOIN before ON before.cut = host_end_ns JOIN changes USING (nth))
        GROUP BY device_name),
    sums AS (
        SELECT device_name, count(*) FILTER (bytes > 0) AS allocations,
               count(*) FILTER (bytes < 0) AS frees, min(nth) AS first_nth, max(nth) AS last_nth,
               max(allocated_bytes) AS peak_bytes, max(reserved_bytes) AS reserved_peak_bytes
        FROM changes GROUP BY device_name),
    peaks AS (
        SELECT device_name, min(nth) AS peak_nth FROM changes JOIN sums USING (device_name)
        WHERE allocated_bytes = peak_bytes GROUP BY device_name)
    SELECT device_name AS device, allocations, frees,
           early.allocated_bytes - early.bytes AS first_bytes, late.allocated_bytes AS last_bytes, peak_bytes,
           high.start_ns AS peak_ns, CASE WHEN high.start_ns < host_end_ns THEN step END AS peak_step,
           reserved_peak_bytes, high.reserved_bytes - high.allocated_bytes AS unused_at_peak_bytes,
           late.reserved_bytes - late.allocated_bytes AS unused_at_end_bytes, coalesce(steps, 0) AS steps,
           CASE WHEN steps > 1 THEN last_end - first_end END AS growth_bytes,
           CASE WHEN steps > 1 THEN slope END AS growth_per_step_bytes
    FROM sums JOIN peaks USING (device_name) LEFT JOIN ends USING (device_name)
    JOIN changes early ON early.nth = first_nth JOIN changes late ON late.nth = last_nth
    JOIN changes high ON high.nth = peak_nth ASOF LEFT JOIN marks ON high.start_ns >= host_start_ns
    ORDER BY peak_bytes DESC, device
"""


def _failed(trace: Trace) -> tuple[str, ...]:
    """What the allocator could not give."""
    found = trace.rows(
        "SELECT count(*) AS times, max(bytes) AS bytes FROM memory_events WHERE name = '[OutOfMemory]'"
    )[0]
    if not found["times"]:
        return ()
    return (f"Requests for memory that failed: {found['times']}, the largest for {found['bytes']} bytes.",)
