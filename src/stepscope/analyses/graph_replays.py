"""Which CUDA graphs were replayed, and what they hold."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GraphReplay", "graph_replays"]


@dataclass(frozen=True, slots=True)
class GraphReplay:
    """One launch of a graph: the work of a device that it owns."""

    step: Annotated[int | None, "Step in whose mark it was launched; NULL outside of all."]
    start_ns: Annotated[int, "When the launch began, in ns since the epoch."]
    graph: Annotated[int, "Number of the graph: replays of the same kernels in the same order share it."]
    device: Annotated[str, "The device, by its index."]
    kernels: Annotated[int, "Kernels in it."]
    copies: Annotated[int, "Copies in it."]
    fills: Annotated[int, "Fills in it."]
    launch_ns: Annotated[int, "Host time of the launch."]
    delay_ns: Annotated[int, "From the start of the launch to the start of its first work."]
    span_ns: Annotated[int, "From the start of its first work to the end of its last."]
    busy_ns: Annotated[int, "Share of that in which its work ran."]
    idle_ns: Annotated[int, "The rest."]
    work_ns: Annotated[int, "Summed time of its work."]
    basis: Annotated[
        str | None,
        "How its operators are known: eager, from the same kernels launched one by one; capture, from the "
        "calls of its capture; NULL: they are not.",
    ]
    known_share: Annotated[float | None, "Share of work_ns whose operator is known."]


@analysis(
    reads={
        "replays": ("event", "launch", "sequence", "op", "basis"),
        "device_work": ("event", "kind", "device_name", "start_ns", "dur_ns"),
        "launches": ("event", "start_ns", "dur_ns"),
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
    }
)
def graph_replays(trace: Trace) -> Table[GraphReplay]:
    """Lists every replay of a CUDA graph: what it contains, how long it ran, how long it was idle inside."""
    if not trace.may_have_name("GraphLaunch"):
        return Table.of(GraphReplay, (), ("No graph was replayed.",))
    table, steps = trace.query(GraphReplay, _SQL), how_steps_were_found(trace)
    notes = (*steps, *_summary(table)) if len(table) else ("No graph was replayed.",)
    return table.with_notes(notes)


_SQL = """
    WITH work AS (
        SELECT r.event, r.launch, r.sequence, r.op, r.basis, w.kind, w.device_name, w.start_ns,
               w.start_ns + coalesce(w.dur_ns, 0) AS end_ns
        FROM replays r JOIN device_work w ON w.event = r.event),
    covered AS (
        SELECT *, max(end_ns) OVER (PARTITION BY launch, device_name ORDER BY start_ns, event
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
        FROM work),
    launched AS (
        SELECT launch, device_name, any_value(sequence) AS graph, min(basis) AS basis,
               count(*) FILTER (kind = 'kernel') AS kernels, count(*) FILTER (kind = 'memcpy') AS copies,
               count(*) FILTER (kind = 'memset') AS fills, min(start_ns) AS first_ns,
               max(end_ns) - min(start_ns) AS span_ns, sum(end_ns - start_ns)::BIGINT AS work_ns,
               sum(greatest(0, end_ns - greatest(start_ns, coalesce(until_ns, start_ns))))::BIGINT AS busy_ns,
               coalesce(sum(end_ns - start_ns) FILTER (op IS NOT NULL), 0)::BIGINT AS known_ns
        FROM covered GROUP BY launch, device_name)
    SELECT CASE WHEN l.start_ns < s.host_end_ns THEN s.step END AS step, l.start_ns, graph,
           device_name AS device, kernels, copies, fills, coalesce(l.dur_ns, 0) AS launch_ns,
           first_ns - l.start_ns AS delay_ns, span_ns, busy_ns, span_ns - busy_ns AS idle_ns, g.work_ns,
           basis, known_ns / nullif(g.work_ns, 0)::DOUBLE AS known_share
    FROM launched g JOIN launches l ON l.event = g.launch
    ASOF LEFT JOIN steps s ON l.start_ns >= s.host_start_ns ORDER BY l.start_ns, g.launch, g.device_name
"""


def _summary(table: Table[GraphReplay]) -> tuple[str, ...]:
    graphs = len(table.arrow.column("graph").unique())
    unknown = table.arrow.column("basis").null_count
    text = f"{len(table)} replays of {graphs} graph{'' if graphs == 1 else 's'}."
    if unknown:
        text += (
            f" Of {unknown} the operators are not known: record the steps that run eagerly before the "
            "capture, or the capture, in the same profile."
        )
    return (text,)
