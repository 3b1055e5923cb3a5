"""What counters of the CPU say of a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CpuTotal", "cpu_totals"]


@dataclass(frozen=True, slots=True)
class CpuTotal:
    """One counter of perf stat."""

    run: Annotated[int, "Number of the run in the file."]
    scope: Annotated[str | None, "Thread, processor or program that it is of; NULL for all."]
    event: Annotated[str, "What was counted."]
    unit: Annotated[str | None, "Unit of the value; NULL for a count."]
    value: Annotated[float | None, "The value; NULL if it was not counted."]
    per_cycle: Annotated[float | None, "For each cycle of the same scope."]
    per_instruction: Annotated[float | None, "For each instruction of the same scope."]
    counted_share: Annotated[float | None, "Part of the run in which it was counted; NULL: all of it."]


_SQL = """
    WITH told AS (
        SELECT *, regexp_extract(event, '^(?:cpu_\\w+/)?([\\w\\-]+)', 1) AS plain FROM cpu_counters),
    of AS (
        SELECT run, scope, max(value) FILTER (plain IN ('cycles', 'cpu-cycles')) AS cycles,
               max(value) FILTER (plain = 'instructions') AS instructions
        FROM told GROUP BY run, scope)
    SELECT t.run, t.scope, event, unit, value,
           CASE WHEN unit IS NULL THEN value / nullif(o.cycles, 0) END AS per_cycle,
           CASE WHEN unit IS NULL THEN value / nullif(o.instructions, 0) END AS per_instruction, counted_share
    FROM told t JOIN of o ON o.run = t.run AND o.scope IS NOT DISTINCT FROM t.scope
    ORDER BY t.run, t.scope NULLS FIRST, event
"""


@analysis(reads={"cpu_counters": ("run", "scope", "event", "unit", "value", "counted_share")})
def cpu_totals(trace: Trace) -> Table[CpuTotal]:
    """Lists the counters of perf stat, for each cycle and instruction."""
    table = trace.query(CpuTotal, _SQL)
    return (
        table
        if len(table)
        else table.with_notes(("No counters of the CPU: perf stat -o x.txt COMMAND has them.",))
    )
