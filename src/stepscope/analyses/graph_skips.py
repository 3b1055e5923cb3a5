"""Where torch.compile made no CUDA graph, and why."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GraphSkip", "graph_skips"]


@dataclass(frozen=True, slots=True)
class GraphSkip:
    """One reason for which CUDA graphs were skipped."""

    reason: Annotated[str, "Why, as torch says it."]
    place: Annotated[str | None, "Line of the program that led to it: file:line."]
    skips: Annotated[int, "How often."]
    regions: Annotated[int, "For how many compiled regions."]
    ranks: Annotated[int, "On how many ranks."]
    first_region: Annotated[str | None, "The first region."]


_SQL = """
    SELECT reason, place, count(*) AS skips, count(DISTINCT (process, region)) AS regions,
           count(DISTINCT coalesce(rank, 0)) AS ranks, min(region) AS first_region
    FROM logged_graph_skips GROUP BY reason, place ORDER BY skips DESC, reason, place
"""


@analysis(reads={"logged_graph_skips": ("rank", "process", "region", "reason", "place")})
def graph_skips(trace: Trace) -> Table[GraphSkip]:
    """Counts CUDA graphs that torch.compile skipped, by reason and line; from a compile log."""
    if not trace.has("logged_graph_skips"):
        return Table.of(GraphSkip, (), (NO_LOG,))
    table = trace.query(GraphSkip, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
