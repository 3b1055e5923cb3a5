"""What counters of the CPU say of a whole run."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
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
    per_cycle: Annotated[float | None, "For each cycle of the same scope and kind of core."]
    per_instruction: Annotated[float | None, "For each instruction of the same scope and kind of core."]
    counted_share: Annotated[float | None, "Part of the run in which it was counted; NULL: all of it."]


_CORES = r"(?:cpu|armv\d+)_\w+"
"""How perf names the counters of one kind of core, on processors that have several: cpu_core, cpu_atom."""
_ALL_OF_IT = 1.005
"""Shares of two kinds of cores that come to more are of a whole machine, not of one program that moved."""
# A program is on one kind of core at a time. perf scales each count up to the whole time, as if the program
# had been on that kind of core throughout: the sum of such counts would be too much.
_SQL = f"""
    WITH told AS (
        SELECT *, nullif(regexp_extract(event, '^({_CORES})/', 1), '') AS cores,
               regexp_extract(event, '^(?:{_CORES}/)?([\\w\\-]+)', 1) AS plain,
               coalesce(counted_share, 1) AS part
        FROM cpu_counters),
    together AS (
        SELECT run, scope, plain || coalesce(':' || nullif(regexp_extract(event, '/(\\w+)$', 1), ''), '')
                   AS event, any_value(unit) AS unit,
               CASE WHEN sum(part) <= {_ALL_OF_IT} THEN sum(value * part) / nullif(sum(part), 0)
                    ELSE sum(value) END AS value,
               CASE WHEN sum(part) < 0.995 THEN sum(part) END AS counted_share,
               NULL::VARCHAR AS cores, plain, NULL::DOUBLE AS part
        FROM told WHERE cores IS NOT NULL GROUP BY ALL HAVING count(DISTINCT cores) > 1 AND count(value) > 0),
    every AS (SELECT * FROM told UNION ALL BY NAME SELECT * FROM together),
    of AS (
        SELECT run, scope, cores, max(value) FILTER (plain IN ('cycles', 'cpu-cycles')) AS cycles,
               max(value) FILTER (plain = 'instructions') AS instructions
        FROM every GROUP BY run, scope, cores)
    SELECT t.run, t.scope, event, unit, value,
           CASE WHEN unit IS NULL THEN value / nullif(o.cycles, 0) END AS per_cycle,
           CASE WHEN unit IS NULL THEN value / nullif(o.instructions, 0) END AS per_instruction, counted_share
    FROM every t JOIN of o ON o.run = t.run AND o.scope IS NOT DISTINCT FROM t.scope
                          AND o.cores IS NOT DISTINCT FROM t.cores
    ORDER BY t.run, t.scope NULLS FIRST, event
"""
_KINDS = f"SELECT 1 FROM cpu_counters WHERE regexp_matches(event, '^{_CORES}/') LIMIT 1"
_SEVERAL = (
    "The processor has several kinds of cores, and each was counted by itself: cpu_core, cpu_atom. perf "
    "scales each count to the whole time. A row without a kind of core is of all together, by where the "
    "program was."
)


@analysis(reads={"cpu_counters": ("run", "scope", "event", "unit", "value", "counted_share")})
def cpu_totals(trace: Trace) -> Table[CpuTotal]:
    """Lists the counters of perf stat, for each cycle and instruction."""
    table = trace.query(CpuTotal, _SQL)
    if not len(table):
        return table.with_notes(("No counters of the CPU: perf stat -o x.txt COMMAND has them.",))
    return table.with_notes((_SEVERAL,)) if trace.rows(_KINDS) else table
