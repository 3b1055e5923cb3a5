"""Whether compilers found their work in a cache."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CompileCache", "compile_caches"]


@dataclass(frozen=True, slots=True)
class CompileCache:
    """Lookups in one cache with one result and one reason."""

    cache: Annotated[str, "fx graph: what Inductor made; aot autograd: the graphs of autograd around it."]
    result: Annotated[str, "hit, miss, or bypass: not even looked up."]
    reason: Annotated[str | None, "Why it was bypassed, or what was missing."]
    lookups: Annotated[int, "How often."]
    regions: Annotated[int, "For how many compiled regions."]
    ranks: Annotated[int, "On how many ranks."]
    saved_ns: Annotated[int | None, "What hits saved, as torch estimates it."]


_SQL = """
    SELECT cache, result, reason, count(*) AS lookups, count(DISTINCT (process, region)) AS regions,
           count(DISTINCT coalesce(rank, 0)) AS ranks, sum(saved_ns)::BIGINT AS saved_ns
    FROM logged_caches GROUP BY cache, result, reason ORDER BY cache, result, lookups DESC, reason
"""


@analysis(reads={"logged_caches": ("rank", "process", "region", "cache", "result", "reason", "saved_ns")})
def compile_caches(trace: Trace) -> Table[CompileCache]:
    """Counts hits, misses and bypasses of the compilers' caches; from a compile log."""
    if not trace.has("logged_caches"):
        return Table.of(CompileCache, (), (NO_LOG,))
    table = trace.query(CompileCache, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
