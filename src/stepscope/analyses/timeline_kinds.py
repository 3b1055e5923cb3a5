"""Which kinds of tensors took the memory, as an exported memory timeline says."""

from __future__ import annotations

from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["TimelineKind", "timeline_kinds"]


@dataclass(frozen=True, slots=True)
class TimelineKind:
    """The memory of one kind of tensor."""

    category: Annotated[str, "Kind of tensor, as the profiler told it."]
    at_peak_bytes: Annotated[int, "What it took when all kinds together took the most."]
    share: Annotated[float | None, "Share of that peak."]
    peak_bytes: Annotated[int, "The most that it took itself, at any time."]
    before_bytes: Annotated[int, "What it took before the profile began."]
    last_bytes: Annotated[int, "What it takes at the end."]


# Changes of one instant belong together: a tensor that becomes another kind is not there twice.
_CHANGES = """
    WITH changes AS (
        SELECT coalesce(start_ns, -1) AS at_ns, category, sum(bytes) AS bytes FROM memory_timeline GROUP BY
            ALL),
    totals AS (
        SELECT at_ns, sum(sum(bytes)) OVER (ORDER BY at_ns) AS total FROM changes GROUP BY at_ns),
    peak AS (SELECT max(total) AS peak_bytes, arg_max(at_ns, row(total, -at_ns)) AS peak_ns FROM totals)
"""
_SQL = f"""
    {_CHANGES},
    levels AS (
        SELECT at_ns, category, bytes, sum(bytes) OVER (PARTITION BY category ORDER BY at_ns) AS level FROM
            changes)
    SELECT category, coalesce(sum(bytes) FILTER (at_ns <= peak_ns), 0)::BIGINT AS at_peak_bytes,
           coalesce(sum(bytes) FILTER (at_ns <= peak_ns), 0) / nullif(any_value(peak_bytes), 0)::DOUBLE AS
               share,
           greatest(0, max(level))::BIGINT AS peak_bytes,
           coalesce(sum(bytes) FILTER (at_ns < 0), 0)::BIGINT AS before_bytes, sum(bytes)::BIGINT AS
               last_bytes
    FROM levels, peak GROUP BY category ORDER BY at_peak_bytes DESC, category
"""


@analysis(reads={"memory_timeline": ("start_ns", "category", "bytes")})
def timeline_kinds(trace: Trace) -> Table[TimelineKind]:
    """Says which kinds of tensors took the memory at the peak of an exported memory timeline."""
    if not trace.has("memory_timeline"):
        none = "No memory timeline: write one with profiler.export_memory_timeline('memory.raw.json.gz')."
        return Table.of(TimelineKind, (), (none,))
    found = trace.query(TimelineKind, _SQL)
    (peak,) = trace.rows(f"{_CHANGES} SELECT peak_bytes::BIGINT AS bytes FROM peak")
    return found.with_notes((f"At most {units.size(peak['bytes'])} in all.",))
