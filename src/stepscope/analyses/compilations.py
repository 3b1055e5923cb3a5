"""How long steps waited for compilers."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._regions import COMPILERS, NAMED, OUTERMOST, REGION, REGION_NUMBER, ROOTS, TIMED
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Compilation", "compilations"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """Compiling of one kind for one region in one step; each instant of a thread counts for one kind."""

    step: Annotated[int | None, "Step in whose mark it began; NULL outside of all."]
    kind: Annotated[
        str,
        "compilation; recompilation: of a frame that had been compiled before; autotuning: kernels timed "
        "against one another; capture: a CUDA graph recorded.",
    ]
    region: Annotated[
        str | None,
        "Compiled region it was for: as torch says it, or else the one that ran next on its thread.",
    ]
    times: Annotated[int, "How often."]
    total_ns: Annotated[int, "Host time, without what it holds of another kind."]
    longest_ns: Annotated[int, "The longest of them."]
    start_ns: Annotated[int, "When the first began, in ns since the epoch."]


@analysis(
    reads={
        "ops": NAMED,
        "annotations": (*NAMED, "category"),
        "python_frames": NAMED,
        "launches": NAMED,
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
    }
)
def compilations(trace: Trace) -> Table[Compilation]:
    """Lists compiling, recompiling, autotuning and graph capture inside the profile, step by step."""
    nothing = "Nothing was compiled in this profile, as far as torch marks it (dynamo_timed and the like)."
    if not trace.may_have_name(COMPILERS):
        return Table.of(Compilation, (), (nothing,))
    table, steps = trace.query(Compilation, _SQL), how_steps_were_found(trace)
    return table.with_notes(steps if len(table) else (nothing,))


_PIECES = f"""
    inner_ones AS (
        SELECT i.event, i.thread, i.start_ns, i.end_ns, i.kind, r.event AS root, r.kind AS root_kind
        FROM ({OUTERMOST.format(where="WHERE kind <> 'compilation'")}) i
        ASOF JOIN roots r ON r.thread = i.thread AND i.start_ns >= r.start_ns),
    pieces AS (
        SELECT start_ns, root, root_kind, kind, end_ns - start_ns AS total_ns FROM inner_ones
        UNION ALL
        SELECT r.start_ns, r.event, r.kind, r.kind,
               r.end_ns - r.start_ns - coalesce(i.inner_ns, 0)
        FROM roots r LEFT JOIN (SELECT root, sum(end_ns - start_ns)::BIGINT AS inner_ns FROM inner_ones
                                GROUP BY root) i ON i.root = r.event
        WHERE r.kind = 'compilation')
"""
# Newer versions say the number in a range of its own inside. Else what was compiled runs next, and what is
# measured belongs to the region that runs.
_REGIONS = f"""
    said AS (
        SELECT event, thread, start_ns, regexp_extract(name, 'compile_id=([^,\\s]+)', 1) AS region
        FROM annotations WHERE name LIKE '%compile\\_id=%' ESCAPE '\\' AND category = 'user_annotation'),
    told AS (
        SELECT r.event AS root, arg_min(s.region, s.start_ns) AS region
        FROM said s ASOF JOIN roots r ON r.thread = s.thread AND s.start_ns >= r.start_ns
        WHERE s.start_ns < r.end_ns AND s.region NOT IN ('', 'None') GROUP BY r.event),
    runs AS (
        SELECT thread, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns,
               {REGION_NUMBER} AS region
        FROM ops WHERE {REGION} AND start_ns IS NOT NULL),
    next_run AS (
        SELECT r.event AS root, n.region FROM roots r
        ASOF JOIN runs n ON n.thread = r.thread AND r.end_ns <= n.start_ns
        WHERE r.next_ns IS NULL OR n.start_ns <= r.next_ns),
    around AS (
        SELECT r.event AS root, n.region FROM roots r
        ASOF JOIN runs n ON n.thread = r.thread AND r.start_ns >= n.start_ns WHERE r.end_ns <= n.end_ns),
    placed AS (
        SELECT p.*, coalesce(told.region, CASE WHEN p.root_kind = 'compilation' THEN next_run.region
                                               ELSE around.region END) AS region
        FROM pieces p LEFT JOIN told USING (root) LEFT JOIN next_run USING (root)
        LEFT JOIN around USING (root))
"""
_SQL = f"""
    WITH {TIMED}, {ROOTS}, {_PIECES}, {_REGIONS},
    stepped AS (
        SELECT CASE WHEN p.start_ns < host_end_ns THEN step END AS step, p.start_ns, total_ns, region,
               CASE WHEN kind = 'compilation' AND regexp_matches(region, '/0*[1-9]\\d*(_\\d+)?$')
                    THEN 'recompilation' ELSE kind END AS kind
        FROM placed p ASOF LEFT JOIN steps ON p.start_ns >= host_start_ns)
    SELECT step, kind, region, count(*) AS times, sum(total_ns)::BIGINT AS total_ns,
           max(total_ns) AS longest_ns, min(start_ns) AS start_ns
    FROM stepped GROUP BY step, kind, region ORDER BY min(start_ns), kind, region
"""
