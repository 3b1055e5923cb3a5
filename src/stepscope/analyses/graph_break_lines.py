"""Which lines break the graphs of torch.compile, and why."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GraphBreakLine", "graph_break_lines"]


@dataclass(frozen=True, slots=True)
class GraphBreakLine:
    """All graph breaks with one reason at one line."""

    place: Annotated[str | None, "The line: file(line): function."]
    code: Annotated[str | None, "Its text."]
    reason: Annotated[str, "Why tracing could not go on, as torch says it."]
    hint: Annotated[str | None, "What torch says can be done."]
    breaks: Annotated[int, "How often it was met while compiling; not how often it runs."]
    regions: Annotated[int, "How many compiled regions met it."]
    ranks: Annotated[int, "How many ranks met it."]
    skipped: Annotated[int, "How often the whole function was left uncompiled because of it."]
    first_region: Annotated[str | None, "The first region that met it."]


_SQL = """
    SELECT file || '(' || coalesce(line, 0) || '): ' || coalesce(function, '?') AS place,
           min(code) AS code, reason, min(hint) AS hint, count(*) AS breaks,
           count(DISTINCT (process, region)) AS regions, count(DISTINCT coalesce(rank, 0)) AS ranks,
           sum(skipped)::BIGINT AS skipped, min(region) AS first_region
    FROM (SELECT * EXCLUDE (function), max(function) OVER (PARTITION BY file, line) AS function
          FROM logged_breaks)
    GROUP BY file, line, function, reason ORDER BY breaks DESC, place, reason
"""


@analysis(
    reads={
        "logged_breaks": (
            *("rank", "process", "region", "file", "line", "function", "code", "reason", "hint", "skipped"),
        )
    }
)
def graph_break_lines(trace: Trace) -> Table[GraphBreakLine]:
    """Counts graph breaks by line and reason; from a compile log."""
    if not trace.has("logged_breaks"):
        return Table.of(GraphBreakLine, (), (NO_LOG,))
    table = trace.query(GraphBreakLine, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
