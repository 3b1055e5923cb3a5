"""What torch.compile compiled, as its log says."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CompileUnit", "compile_units"]


@dataclass(frozen=True, slots=True)
class CompileUnit:
    """One compilation of a function, of its backward, or work at its first run."""

    rank: Annotated[int | None, "Rank that compiled it."]
    process: Annotated[int | None, "Process that compiled it."]
    region: Annotated[str | None, "Its number, frame/version, as in compiled_regions."]
    kind: Annotated[str, "frame: a function; backward: its backward; runtime: work at its first run."]
    function: Annotated[str | None, "Where it is defined: file(line): function."]
    called_from: Annotated[str | None, "Line that called it: file(line): function."]
    start_ns: Annotated[int | None, "When it began, in ns since the epoch."]
    dur_ns: Annotated[int | None, "How long it took; NULL if the log does not have its end."]
    backend_ns: Annotated[int | None, "Of that, the backend."]
    inductor_ns: Annotated[int | None, "Of that, Inductor."]
    code_ns: Annotated[int | None, "Of that, writing and compiling code."]
    restarts_ns: Annotated[int | None, "Of that, tracing that was thrown away after a graph break."]
    attempts: Annotated[int, "Starts of tracing."]
    turn: Annotated[int, "How often the same region had been compiled before in this process."]
    graph_ops: Annotated[int | None, "Operators in its graph."]
    layers: Annotated[int | None, "Layers of one list of modules that are in its graph."]
    guards: Annotated[int | None, "Guards that are checked before each run."]
    breaks: Annotated[int, "Graph breaks that it met."]
    cache: Annotated[str | None, "What the caches of compilers said: fx graph hit, aot autograd miss."]
    recompiled_because: Annotated[str | None, "The guard that failed, for a later version of a function."]
    failed: Annotated[str | None, "Why it failed."]


_SQL = """
    WITH broken AS (
        SELECT rank, process, region, count(*) AS breaks FROM logged_breaks GROUP BY ALL),
    cached AS (
        SELECT rank, process, region, string_agg(said, ', ' ORDER BY said) AS cache
        FROM (SELECT DISTINCT rank, process, region, cache || ' ' || result AS said FROM logged_caches)
        GROUP BY ALL)
    SELECT c.rank, c.process, c.region, kind,
           c.file || '(' || coalesce(c.line, 0) || '): ' || coalesce(c.function, '?') AS function,
           called_from, c.start_ns, dur_ns, backend_ns, inductor_ns, code_ns, restarts_ns, attempts, turn,
           graph_ops, layers, guards,
           CASE WHEN kind = 'frame' THEN coalesce(b.breaks, 0) ELSE 0 END AS breaks,
           CASE WHEN kind = 'frame' THEN d.cache END AS cache, recompiled_because, failed
    FROM logged_compilations c
    LEFT JOIN broken b ON b.process = c.process AND b.region = c.region AND b.rank IS NOT DISTINCT FROM c.rank
    LEFT JOIN cached d ON d.process = c.process AND d.region = c.region AND d.rank IS NOT DISTINCT FROM c.rank
    ORDER BY dur_ns DESC NULLS LAST, c.start_ns, c.rank, c.region, kind, turn
"""


@analysis(
    reads={
        "logged_compilations": (
            *("rank", "process", "region", "kind", "turn", "attempts", "function", "file", "line"),
            *("called_from", "start_ns", "dur_ns", "backend_ns", "inductor_ns", "code_ns", "restarts_ns"),
            *("graph_ops", "layers", "guards", "recompiled_because", "failed"),
        ),
        "logged_breaks": ("rank", "process", "region"),
        "logged_caches": ("rank", "process", "region", "cache", "result"),
    }
)
def compile_units(trace: Trace) -> Table[CompileUnit]:
    """Lists what torch.compile compiled and what it cost, longest first; from a compile log."""
    if not trace.has("logged_compilations"):
        return Table.of(CompileUnit, (), (NO_LOG,))
    table = trace.query(CompileUnit, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
