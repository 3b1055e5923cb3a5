"""Which guards failed, so that functions were compiled again."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RecompileGuard", "recompile_guards"]


@dataclass(frozen=True, slots=True)
class RecompileGuard:
    """Recompilations of one function because of one kind of guard; numbers in the guard may differ."""

    function: Annotated[str | None, "The function: file(line): function."]
    guard: Annotated[str, "The guard that failed for the latest version; numbers that differ are N."]
    example: Annotated[str, "The guard as it was the first time."]
    code: Annotated[str | None, "Text of the line that made the guard, where torch says it."]
    recompilations: Annotated[int, "How often the function was compiled again because of it."]
    versions: Annotated[int, "How many versions of the function there are in the end."]
    compiling_ns: Annotated[int | None, "How long these compilations took; NULL where the log has no times."]
    gave_up: Annotated[int, "How often torch gave up: the function runs uncompiled since then."]
    ranks: Annotated[int, "How many ranks recompiled."]


# The first of the versions that are tried is the latest: its guard says what changed since the last time.
_SQL = r"""
    WITH numbered AS (
        SELECT *, row_number() OVER (
                   PARTITION BY rank, process, region, start_ns, "limit"
                   ORDER BY TRY_CAST(regexp_extract(version, '/(\d+)', 1) AS BIGINT) DESC NULLS LAST) AS nth,
               regexp_replace(guard, '\b\d+(\.\d+)?(e[+-]?\d+)?\b', 'N', 'g') AS alike
        FROM logged_recompiles),
    latest AS (SELECT * FROM numbered WHERE nth = 1),
    timed AS (
        SELECT rank, process, region, sum(dur_ns)::BIGINT AS dur_ns, max(version) AS version
        FROM (SELECT rank, process, region, dur_ns,
                     TRY_CAST(regexp_extract(region, '/(\d+)$', 1) AS BIGINT) + 1 AS version
              FROM logged_compilations WHERE kind = 'frame') GROUP BY ALL)
    SELECT l.file || '(' || coalesce(l.line, 0) || '): ' || coalesce(l.function, '?') AS function,
           CASE WHEN count(DISTINCT guard) > 1 THEN alike ELSE min(guard) END AS guard,
           coalesce(arg_min(guard, l.start_ns), min(guard)) AS example, min(code) AS code,
           count(*) FILTER ("limit" = 0) AS recompilations,
           coalesce(max(t.version),
                    max(TRY_CAST(regexp_extract(l.region, '/(\d+)$', 1) AS BIGINT)) + 1, 1) AS versions,
           sum(t.dur_ns)::BIGINT AS compiling_ns, sum("limit")::BIGINT AS gave_up,
           count(DISTINCT coalesce(l.rank, 0)) AS ranks
    FROM latest l
    LEFT JOIN timed t ON t.process = l.process AND t.region = l.region AND t.rank IS NOT DISTINCT FROM l.rank
                     AND l."limit" = 0
    GROUP BY l.file, l.line, l.function, alike
    ORDER BY compiling_ns DESC NULLS LAST, recompilations DESC, function, guard
"""


@analysis(
    reads={
        "logged_recompiles": (
            *("rank", "process", "region", "start_ns", "function", "file", "line", "version", "guard"),
            *("code", "limit"),
        ),
        "logged_compilations": ("rank", "process", "region", "kind", "dur_ns"),
    }
)
def recompile_guards(trace: Trace) -> Table[RecompileGuard]:
    """Sums up recompilations by function and by the guard that failed; from a compile log."""
    if not trace.has("logged_recompiles"):
        return Table.of(RecompileGuard, (), (NO_LOG,))
    table = trace.query(RecompileGuard, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
