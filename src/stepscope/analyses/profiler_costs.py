"""What recording itself cost: how much faster the program runs without the profiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._windows import DRIVING, how_steps_were_found
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ProfilerCost", "profiler_costs"]


@dataclass(frozen=True, slots=True)
class ProfilerCost:
    """One kind of event that the profiler records while the program runs."""

    kind: Annotated[str, "operators, runtime calls, python frames, memory events, ranges, or overhead."]
    events: Annotated[int, "How many were recorded by threads that drive the steps, from first to last step."]
    per_step: Annotated[float, "The same for a step, on average."]
    least_ns: Annotated[int, "What recording them cost the host in all steps, at the least: estimated."]
    most_ns: Annotated[int, "The same, at the most."]


COSTS_NS = {
    "operators": 3_600,
    "runtime calls": 1_500,
    "python frames": 550,
    "memory events": 200,
    "ranges": 3_600,
}
"""What an event of each kind adds to the time of a host of speed 1. Fitted to fifty programs whose step was
timed with and without the profiler: with the host's speed, half of the steps without it come out within 7 %,
and eight of ten within 20 %."""
DOUBT = (0.75, 1.25)
"""At the least and at the most, as parts of that, where the host's speed can be told."""
VAGUE = (0.5, 1.7)
"""The same where it cannot."""
TRANSPOSE_NS = 1_700
"""How long a host of speed 1 takes for what these two do themselves, under the profiler: next to nothing but
being called and recorded. That is why they tell what an event costs."""
LAUNCH_NS = 6_400
"""How long it takes for a launch: the second best measure, for the driver has a part in it."""
LEAST_CALLS = 20
COLD = 1.6
"""How much slower than the launches say the other calls may be: where these are few, their code is cold."""

_TABLES = {
    "operators": "ops",
    "runtime calls": "launches",
    "python frames": "python_frames",
    "memory events": "memory_events",
    "ranges": "annotations",
}
_WINDOW = "SELECT count(*) AS steps, min(host_start_ns) AS since, max(host_end_ns) AS until FROM steps"
_EVENTS = " UNION ALL ".join(
    f"""
    SELECT '{kind}' AS kind, count(*) AS events FROM {table}
    WHERE start_ns >= $since AND start_ns < $until AND list_contains($threads, thread)
    {"AND category = 'user_annotation'" if kind == "ranges" else ""}
    """
    for kind, table in _TABLES.items()
)
_SPEED = f"""
    SELECT (SELECT median(self_ns) / {TRANSPOSE_NS} FROM ops WHERE name IN ('aten::t', 'aten::transpose')
            HAVING count(*) >= {LEAST_CALLS}) AS by_ops,
           (SELECT quantile_cont(dur_ns, 0.25) / {LAUNCH_NS} FROM launches WHERE name = 'cudaLaunchKernel'
            HAVING count(*) >= {LEAST_CALLS}) AS by_launches
"""
_OVERHEAD = """
    SELECT count(*) AS events, coalesce(sum(o.dur_ns), 0)::BIGINT AS ns
    FROM other_events o
    WHERE o.category = 'overhead' AND o.phase = 'X' AND o.start_ns >= $since AND o.start_ns < $until
"""


@analysis(
    reads={
        "ops": ("start_ns", "thread", "forward_thread", "name", "self_ns"),
        "launches": ("start_ns", "thread", "work_events", "name", "dur_ns"),
        "python_frames": ("start_ns", "thread"),
        "memory_events": ("start_ns", "thread"),
        "annotations": ("start_ns", "thread", "category"),
        "other_events": ("start_ns", "dur_ns", "category", "phase"),
        "steps": ("source", "host_start_ns", "host_end_ns", "thread"),
    }
)
def profiler_costs(trace: Trace) -> Table[ProfilerCost]:
    """Estimates what recording added to the host's time in the steps, by kind of event.

    Every event costs the thread that records it a moment. How long a moment is depends on the host, whose
    speed shows in calls that do next to nothing. Where the device sets the pace, this time is hidden; where
    the host does, the program runs so much faster without the profiler.
    """
    window = trace.arrow(_WINDOW).to_pylist()[0]
    steps = window.pop("steps")
    threads = trace.arrow(DRIVING)["thread"].to_pylist()
    low, high, speed = _moment(trace)
    rows = []
    for found in trace.arrow(_EVENTS, **window, threads=threads).to_pylist() if steps else ():
        if events := found["events"]:
            cost = events * COSTS_NS[found["kind"]]
            rows.append(
                ProfilerCost(found["kind"], events, events / steps, round(low * cost), round(high * cost))
            )
    overhead = trace.arrow(_OVERHEAD, **window).to_pylist()[0]
    if overhead["events"]:
        # Most of it is asynchronous to the program: a buffer is flushed by whoever finds it full.
        per_step = overhead["events"] / steps
        rows.append(ProfilerCost("overhead", overhead["events"], per_step, 0, overhead["ns"]))
    rows.sort(key=lambda row: (-row.most_ns, row.kind))
    said = [speed] if rows else ["No event of the host was recorded in a step."]
    return Table.of(ProfilerCost, rows, said + how_steps_were_found(trace))


def _moment(trace: Trace) -> tuple[float, float, str]:
    """How long an event takes to record, at the least and at the most, against a host of speed 1."""
    found = trace.arrow(_SPEED).to_pylist()[0]
    by_ops, by_launches = found["by_ops"], found["by_launches"]
    slowness = by_ops or by_launches
    if not slowness:
        return *VAGUE, "Nothing tells how fast the host is: the estimate is a wide one."
    if by_ops and by_launches:
        slowness = min(by_ops, COLD * by_launches)
    said = f"An event costs this host {units.number(slowness)} times what it costs the one measured."
    return DOUBT[0] * slowness, DOUBT[1] * slowness, said
