"""What recording itself cost: how much faster the program runs without the profiler."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import DRIVING, how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.recording_cost import COST_KINDS, COSTS_NS, RECORDING_READS, cost_kinds
from stepscope.simulation.simulator import recording_moment_of
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ProfilerCost", "profiler_costs"]


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """One kind of event that the profiler records while the program runs."""

    kind: Annotated[
        str,
        "operators, compiled code, runtime calls, graph kernels, python frames, memory events, ranges, or "
        "overhead.",
    ]
    events: Annotated[int, "How many were recorded by threads that drive the steps, from first to last step."]
    per_step: Annotated[float, "The same per step, on average."]
    least_ns: Annotated[int, "What recording them cost the host in all steps: estimated lower bound."]
    most_ns: Annotated[int, "The same, upper bound."]


_WINDOW = "SELECT count(*) AS steps, min(host_start_ns) AS since, max(host_end_ns) AS until FROM steps"
_SUM = """
    (SELECT coalesce(sum(events), 0) FROM ({sql})
     WHERE start_ns >= $since AND start_ns < $until AND list_contains($threads, thread))
"""
_OVERHEAD = """
    SELECT count(*) AS events, coalesce(sum(o.dur_ns), 0)::BIGINT AS ns
    FROM other_events o
    WHERE o.category = 'overhead' AND o.phase = 'X' AND o.start_ns >= $since AND o.start_ns < $until
"""


@analysis(
    reads={
        **RECORDING_READS,
        "ops": (*RECORDING_READS["ops"], "forward_thread"),
        "other_events": ("start_ns", "dur_ns", "category", "phase"),
        "steps": ("source", "host_start_ns", "host_end_ns", "thread"),
    }
)
def profiler_costs(trace: Trace) -> Table[ProfilerCost]:
    """Estimates what recording added to the host's time in the steps, by kind of event.

    Recording an event costs its thread a few microseconds. How many depends on the speed of the host, which
    shows in calls that do almost nothing; of many events one after the other each costs less. If the device
    limits the step, this time is hidden. If the host does, the program is that much faster without the
    profiler.
    """
    window = trace.rows(_WINDOW)[0]
    steps = window.pop("steps")
    threads = [row["thread"] for row in trace.rows(DRIVING)]
    moment = recording_moment_of(trace)
    rows = []
    paid = cost_kinds(moment)
    asked = " UNION ALL ".join(
        f"SELECT '{kind}' AS kind, {_SUM.format(sql=sql)}::BIGINT AS events, "
        f"{_SUM.format(sql=paid[kind])} AS paid"
        for kind, sql in COST_KINDS.items()
    )
    for found in trace.rows(asked, **window, threads=threads) if steps and moment.most else ():
        if events := found["events"]:
            cost = found["paid"] * COSTS_NS[found["kind"]]
            least, most = round(moment.least * cost), round(moment.most * cost)
            rows.append(ProfilerCost(found["kind"], events, events / steps, least, most))
    overhead = trace.rows(_OVERHEAD, **window)[0]
    if overhead["events"]:
        # Most of it is asynchronous to the program: a buffer is flushed by whoever finds it full.
        per_step = overhead["events"] / steps
        rows.append(ProfilerCost("overhead", overhead["events"], per_step, 0, overhead["ns"]))
    rows.sort(key=lambda row: (-row.most_ns, row.kind))
    said = [moment.said] if rows or not moment.most else ["No event of the host was recorded in a step."]
    return Table.of(ProfilerCost, rows, said + how_steps_were_found(trace))
