"""What the memory of a snapshot did in each step."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import LIFE_READS, STEPS, history_notes, lives_sql, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["AllocatorStep", "allocator_steps"]


@dataclass(frozen=True, slots=True)
class AllocatorStep:
    """The memory of one device in one step."""

    device: Annotated[int, "Index of the device."]
    step: Annotated[int, "Number of the step: its mark's, or counted from 0."]
    source: Annotated[
        str,
        "How steps were found. mark: ProfilerStep ranges of the snapshot. trace: those of the trace. "
        "optimizer: each ends with a call of the optimizer.",
    ]
    start_bytes: Annotated[int, "Active when it began."]
    end_bytes: Annotated[int, "Active when it ended."]
    growth_bytes: Annotated[int, "The difference of the two."]
    peak_bytes: Annotated[int, "The most that was active in between."]
    kept_bytes: Annotated[int, "Allocated in it and still in use at the end of the history."]
    kept_site: Annotated[str | None, "Line of code that made most of that; NULL: no stack, or nothing kept."]
    kept_phase: Annotated[str | None, "Phase that made it."]
    kept_site_bytes: Annotated[int | None, "How much that is."]


_SQL = """
    during AS (
        SELECT spans.device, step, max(active_bytes) AS peak_bytes
        FROM levels ASOF JOIN spans ON levels.device = spans.device AND nth > from_nth
        WHERE nth <= to_nth GROUP BY spans.device, step),
    kept AS (
        SELECT spans.device, step, site, phase, sum(bytes)::BIGINT AS bytes
        FROM kinds ASOF JOIN spans ON kinds.device = spans.device AND made_nth > from_nth
        WHERE made_nth <= to_nth AND freed_nth IS NULL GROUP BY ALL),
    most AS (
        SELECT device, step, sum(bytes)::BIGINT AS kept_bytes, arg_max(site, bytes) AS kept_site,
               arg_max(phase, bytes) AS kept_phase, max(bytes) AS kept_site_bytes
        FROM kept GROUP BY device, step),
    bounds AS (
        SELECT spans.device, step, source, from_nth, coalesce(early.active_bytes, starts.active_bytes) AS
            start_bytes,
               spans.to_nth
        FROM spans JOIN starts USING (device)
        ASOF LEFT JOIN levels early ON early.device = spans.device AND early.nth <= from_nth),
    ended AS (
        SELECT bounds.*, coalesce(late.active_bytes, start_bytes) AS end_bytes
        FROM bounds ASOF LEFT JOIN levels late ON late.device = bounds.device AND late.nth <= to_nth)
    SELECT device, step, source, start_bytes, end_bytes, end_bytes - start_bytes AS growth_bytes,
           greatest(start_bytes, coalesce(peak_bytes, start_bytes)) AS peak_bytes,
           coalesce(kept_bytes, 0) AS kept_bytes, kept_site, kept_phase, kept_site_bytes
    FROM ended LEFT JOIN during USING (device, step) LEFT JOIN most USING (device, step)
    ORDER BY device, from_nth
"""


@analysis(
    reads={
        **LIFE_READS,
        "allocator_annotations": ("name", "stage", "start_ns"),
        "steps": ("step", "host_start_ns", "host_end_ns"),
    }
)
def allocator_steps(trace: Trace) -> Table[AllocatorStep]:
    """Says for each step of a snapshot's history how memory grew, its peak, and what was kept."""
    notes = missing(trace) or history_notes(trace)
    if notes:
        return Table.of(AllocatorStep, (), notes)
    parts = lives_sql(trace, STEPS)
    found = trace.query(AllocatorStep, f"{parts}, {_SQL}")
    none = ("No steps: the history has no marks of steps, and no two calls of an optimizer.",)
    return found if len(found) else found.with_notes(none)
