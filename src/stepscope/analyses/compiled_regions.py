"""Which compiled code ran, what it launched, and where it was left and entered again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._regions import NAMED, REGION, REGION_NUMBER, ROOTS, TIMED
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses.compilations import compilations
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CompiledRegion", "compiled_regions"]


@dataclass(frozen=True, slots=True)
class CompiledRegion:
    """All runs of one compiled region inside the steps; what is launched counts for the innermost region."""

    region: Annotated[str, "Its number as torch prints it, frame/version; else the name of its graph."]
    frame: Annotated[str | None, "The frame alone: versions of one frame are recompilations."]
    inside: Annotated[str | None, "Region around its runs; NULL where there is none."]
    calls: Annotated[int, "How often it ran."]
    steps: Annotated[int, "In how many steps."]
    calls_per_step: Annotated[float | None, "Runs for each step of the profile."]
    regions_inside: Annotated[
        int, "Runs of other regions directly inside its own: a graph break is suspected."
    ]
    host_ns: Annotated[int, "Host time of its runs."]
    host_self_ns: Annotated[int, "The same without regions and compilers inside."]
    device_events: Annotated[int, "Pieces of device work that it launched, without those of compilers."]
    device_ns: Annotated[int, "Their summed time."]
    graph_launches: Annotated[int, "CUDA graphs that it replayed, forward and backward."]
    backward_calls: Annotated[int, "Runs of its backward."]
    backward_host_ns: Annotated[int, "Host time of these, without compilers inside."]
    backward_device_events: Annotated[int, "Pieces of device work that these launched."]
    backward_device_ns: Annotated[int, "Their summed time."]
    compiling_ns: Annotated[int, "Compiling, autotuning and capture for it inside the steps."]


@analysis(
    reads={
        "ops": (*NAMED, "sequence"),
        "annotations": (*NAMED, "category"),
        "python_frames": NAMED,
        "launches": (*NAMED, "work_events", "work_ns"),
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
    }
)
def compiled_regions(trace: Trace) -> Table[CompiledRegion]:
    """Sums up compiled regions inside the steps: runs, host and device time, graphs, suspected breaks."""
    rows = list(_rows(trace))
    notes = (*how_steps_were_found(trace), *_breaks(rows), *_guards(trace))
    if not rows:
        notes = ("No compiled regions: torch.compile was not used, or torch did not mark it.",)
    return Table.of(CompiledRegion, rows, notes)


_RUN_NAMES = "^Torch-Compiled Region|^## Call CompiledFxGraph"
# Runs of regions as torch marks them, and of their backward; where a version of torch marks none, of compiled
# graphs. Compilers are among them without a region: what they do inside a run is not the run's.
_RUNS = f"""
    marked AS (
        SELECT event, thread, start_ns, start_ns + dur_ns AS end_ns,
               coalesce(nullif({REGION_NUMBER}, ''), 'unnumbered') AS region
        FROM ops WHERE {REGION} AND start_ns IS NOT NULL AND dur_ns > 0),
    graphs AS (
        SELECT event, thread, start_ns, start_ns + dur_ns AS end_ns,
               'graph ' || regexp_extract(name, 'CompiledFxGraph (\\w+)', 1) AS region
        FROM annotations
        WHERE name LIKE '## Call CompiledFxGraph%' AND category = 'user_annotation' AND dur_ns > 0
          AND start_ns IS NOT NULL AND NOT EXISTS (FROM marked)),
    forward AS (
        SELECT f.sequence, f.start_ns, r.region
        FROM (FROM ops WHERE name = 'CompiledFunction' AND sequence IS NOT NULL) f
        ASOF JOIN marked r ON r.thread = f.thread AND f.start_ns >= r.start_ns WHERE f.start_ns < r.end_ns),
    backward AS (
        SELECT b.event, b.thread, b.start_ns, b.start_ns + b.dur_ns AS end_ns, f.region
        FROM (FROM ops WHERE name = 'CompiledFunctionBackward' AND dur_ns > 0) b
        ASOF LEFT JOIN forward f ON f.sequence = b.sequence AND b.start_ns >= f.start_ns
        WHERE EXISTS (FROM marked)),
    runs AS MATERIALIZED (
        SELECT *, false AS backward FROM marked UNION ALL SELECT *, false FROM graphs
        UNION ALL SELECT event, thread, start_ns, end_ns, coalesce(region, 'unknown'), true FROM backward
        UNION ALL SELECT event, thread, start_ns, end_ns, NULL, false FROM roots WHERE end_ns > start_ns)
"""
# Which run is the innermost from each of their edges on: after an end, the one that began last one level up.
_INNERMOST = """
    edges AS (
        SELECT thread, event, start_ns AS instant, 1 AS delta, end_ns FROM runs
        UNION ALL SELECT thread, event, end_ns, -1, end_ns FROM runs),
    levels AS MATERIALIZED (
        SELECT thread, event, instant, delta,
               row_number() OVER (PARTITION BY thread ORDER BY instant, delta, end_ns DESC, event) AS nth,
               sum(delta) OVER (PARTITION BY thread ORDER BY instant, delta, end_ns DESC, event
                                ROWS UNBOUNDED PRECEDING) AS level
        FROM edges),
    starts AS (SELECT thread, event, nth, level FROM levels WHERE delta = 1),
    parents AS MATERIALIZED (
        SELECT s.event, p.event AS parent FROM starts s
        ASOF JOIN starts p ON p.thread = s.thread AND p.level = s.level - 1 AND s.nth >= p.nth),
    innermost AS (
        SELECT l.thread, l.instant, l.nth, CASE WHEN l.delta = 1 THEN l.event ELSE s.event END AS run
        FROM levels l
        ASOF LEFT JOIN starts s ON s.thread = l.thread AND s.level = l.level AND l.nth >= s.nth),
    turns AS MATERIALIZED (
        SELECT thread, instant, arg_max(run, nth) AS run FROM innermost GROUP BY thread, instant)
"""
_SUMS = """
    launched AS (
        SELECT t.run, sum(l.work_events) AS events, sum(l.work_ns) AS ns,
               count(*) FILTER (l.name LIKE '%GraphLaunch%') AS graphs
        FROM (FROM launches WHERE work_events > 0) l
        ASOF JOIN turns t ON t.thread = l.thread AND l.start_ns >= t.instant
        WHERE t.run IS NOT NULL GROUP BY t.run),
    nested AS (
        SELECT parent AS run, sum(end_ns - start_ns) AS ns, count(region) FILTER (NOT backward) AS runs
        FROM parents JOIN runs USING (event) GROUP BY parent),
    whole AS (
        SELECT r.*, s.step, p.region AS inside, coalesce(n.runs, 0) AS regions_inside,
               r.end_ns - r.start_ns AS host_ns, coalesce(n.ns, 0) AS others_ns,
               coalesce(l.events, 0) AS events, coalesce(l.ns, 0) AS ns, coalesce(l.graphs, 0) AS graphs
        FROM runs r ASOF JOIN steps s ON r.start_ns >= s.host_start_ns
        LEFT JOIN parents ON parents.event = r.event LEFT JOIN runs p ON p.event = parents.parent
        LEFT JOIN nested n ON n.run = r.event LEFT JOIN launched l ON l.run = r.event
        WHERE r.start_ns < s.host_end_ns AND r.region IS NOT NULL)
"""
_SQL = f"""
    WITH {TIMED}, {ROOTS}, {_RUNS}, {_INNERMOST}, {_SUMS}
    SELECT region, min(inside) FILTER (NOT backward) AS inside, count(*) FILTER (NOT backward) AS calls,
           count(DISTINCT step) FILTER (NOT backward) AS steps,
           coalesce(sum(regions_inside) FILTER (NOT backward), 0)::BIGINT AS regions_inside,
           coalesce(sum(host_ns) FILTER (NOT backward), 0)::BIGINT AS host_ns,
           coalesce(sum(host_ns - others_ns) FILTER (NOT backward), 0)::BIGINT AS host_self_ns,
           coalesce(sum(events) FILTER (NOT backward), 0)::BIGINT AS device_events,
           coalesce(sum(ns) FILTER (NOT backward), 0)::BIGINT AS device_ns,
           sum(graphs)::BIGINT AS graph_launches, count(*) FILTER (backward) AS backward_calls,
           coalesce(sum(host_ns - others_ns) FILTER (backward), 0)::BIGINT AS backward_host_ns,
           coalesce(sum(events) FILTER (backward), 0)::BIGINT AS backward_device_events,
           coalesce(sum(ns) FILTER (backward), 0)::BIGINT AS backward_device_ns
    FROM whole GROUP BY region ORDER BY host_ns DESC, region
"""


def _rows(trace: Trace) -> Iterator[CompiledRegion]:
    compiling: Counter[str] = Counter()
    for one in compilations(trace):
        if one.step is not None and one.region is not None:
            compiling[one.region] += one.total_ns
    steps = trace.rows("SELECT count(*) AS n FROM steps")[0]["n"]
    for row in trace.rows(_SQL) if trace.may_have_name(_RUN_NAMES) else ():
        yield CompiledRegion(
            frame=_frame(row["region"]),
            calls_per_step=row["calls"] / steps if steps else None,
            compiling_ns=compiling.pop(row["region"], 0),
            **row,
        )
    figures = [
        name for name in CompiledRegion.__dataclass_fields__ if name not in ("region", "frame", "inside")
    ]
    for region, total in sorted(compiling.items()):  # compiled, and not run in any step
        nothing = {
            **dict.fromkeys(figures, 0),
            "calls_per_step": 0.0 if steps else None,
            "compiling_ns": total,
        }
        yield CompiledRegion(region=region, frame=_frame(region), inside=None, **nothing)  # type: ignore[arg-type]


def _frame(region: str) -> str | None:
    frame, slash, _ = region.rpartition("/")
    return frame if slash else None


def _breaks(rows: list[CompiledRegion]) -> Iterator[str]:
    """What the number of regions says of graph breaks: a suspicion, never more."""
    broken = [row for row in rows if row.regions_inside]
    for row in broken:
        yield (
            f"Region {row.region}: {units.count(row.regions_inside)} runs of other regions inside "
            f"{units.count(row.calls)} of its own. A graph break is suspected; "
            "TORCH_LOGS=graph_breaks says where."
        )
    frames = {row.frame for row in rows if row.calls and row.inside is None}
    if len(frames) > 1:
        yield (
            f"{len(frames)} frames were compiled side by side: on purpose (parts of a model), or because "
            "code between them could not be compiled. TORCH_LOGS=graph_breaks says which."
        )


def _guards(trace: Trace) -> Iterator[str]:
    if not trace.may_have_name("^TorchDynamo Cache Lookup$"):
        return
    found = trace.rows(
        """
        SELECT count(*) AS n, sum(dur_ns)::BIGINT AS ns
        FROM ops o ASOF JOIN steps ON o.start_ns >= host_start_ns
        WHERE o.name = 'TorchDynamo Cache Lookup' AND o.start_ns < host_end_ns
        """
    )[0]
    if found["n"]:
        lookups = units.counted(found["n"], "lookup")
        yield f"Guards: {lookups} in the steps took {units.duration(found['ns'])}."
