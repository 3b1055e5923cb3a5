"""What recording costs the host: for every event a moment, which is longer on a slower host.

The costs were fitted to the simulations of fifty programs on one machine, whose step was timed without the
profiler, with it, and with all its options. With the host's speed, nine of ten steps without the profiler
come out within 20 % (eight of ten from recordings with all options).
"""

from __future__ import annotations

from stepscope import units
from stepscope.records import dataclass
from stepscope.store.trace import Reads, Trace

__all__ = [
    "COSTS_NS",
    "COST_KINDS",
    "DOUBT",
    "FRAMES_SHARE",
    "RECORDING_READS",
    "Moment",
    "cost_kinds",
    "moment_of",
]

COSTS_NS = {
    "operators": 3_200,
    "compiled code": 16_000,
    "runtime calls": 3_000,
    "graph kernels": 1_650,
    "python frames": 1_000,
    "memory events": 200,
    "ranges": 10_000,
}
"""What an event of each kind adds to the time of a host of speed 1. Ranges and what compiled code says of
itself are recorded from Python; the kernels of a graph are entered one by one when it is launched."""

FRAMES_SHARE = 0.7
"""Recording takes about this part of a millisecond that is full of calls: each call does something, too, and
where the same few functions are called again and again, recording one costs less than elsewhere."""
OPERATORS_SHARE = 0.5
"""The same of operators."""
_FULL_NS = 1_000_000

DOUBT = (0.75, 1.25)
"""At least and at most, as parts of that, where the host's speed is known."""
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

_ELSEWHERE = {"etdump": "ExecuTorch recorded it: what that cost the device is unknown, and is not taken off."}
"""What is said where another profiler than PyTorch's recorded operators: its events cost something else."""

_COMPILED = "^(triton_|Torch-Compiled |TorchDynamo |Pregraph |AOTDispatcher |## Call |CompiledFunction)"

_IS_COMPILED = f"regexp_matches(name, '{_COMPILED}')"

COST_KINDS = {
    "operators": f"SELECT thread, start_ns, 1 AS events FROM ops WHERE NOT {_IS_COMPILED}",
    "compiled code": f"SELECT thread, start_ns, 1 AS events FROM ops WHERE {_IS_COMPILED}",
    "runtime calls": "SELECT thread, start_ns, 1 AS events FROM launches",
    "graph kernels": """SELECT thread, start_ns, work_events - 1 AS events FROM launches
                        WHERE work_events > 1""",
    "python frames": "SELECT thread, start_ns, 1 AS events FROM python_frames",
    "memory events": "SELECT thread, start_ns, 1 AS events FROM memory_events",
    "ranges": "SELECT thread, start_ns, 1 AS events FROM annotations WHERE category = 'user_annotation'",
}
"""Where each kind of event is: one row for each, or for several at once."""

_TOGETHER = """
    SELECT e.thread, e.start_ns, coalesce({most} / d.together, 1.0) AS events
    FROM ({one_by_one}) e LEFT JOIN (
        SELECT thread, start_ns // {full} AS part, count(*) AS together FROM ({one_by_one})
        WHERE start_ns >= $since AND start_ns < $until GROUP BY ALL HAVING together > {most}) d
    ON d.thread = e.thread AND d.part = e.start_ns // {full}
"""

RECORDING_READS: Reads = {
    "ops": ("start_ns", "thread", "name", "self_ns"),
    "launches": ("start_ns", "thread", "work_events", "name", "dur_ns"),
    "python_frames": ("start_ns", "thread"),
    "memory_events": ("start_ns", "thread"),
    "annotations": ("start_ns", "thread", "category"),
}

_SPEED = f"""
    SELECT (SELECT median(self_ns) / {TRANSPOSE_NS} FROM ops WHERE name IN ('aten::t', 'aten::transpose')
            HAVING count(*) >= {LEAST_CALLS}) AS by_ops,
           (SELECT quantile_cont(dur_ns, 0.25) / {LAUNCH_NS} FROM launches
            WHERE name IN ('cudaLaunchKernel', 'cuLaunchKernel', 'cuLaunchKernelEx', 'cudaLaunchKernelExC')
            HAVING count(*) >= {LEAST_CALLS}) AS by_launches
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """How long an event takes to record, against a host of speed 1."""

    least: float
    most: float
    said: str


def moment_of(trace: Trace) -> Moment:
    """How long recording an event takes on the host of a trace."""
    return trace.once("moment", lambda: _moment(trace))  # type: ignore[no-any-return]


def cost_kinds(moment: Moment) -> dict[str, str]:
    """Where each kind of event is between $since and $until, and how many it counts for.

    Calls one after the other count for less.
    """
    usual = (moment.least + moment.most) / 2
    if not usual:
        return COST_KINDS
    together = {
        kind: _TOGETHER.format(
            most=share * _FULL_NS / (usual * COSTS_NS[kind]), full=_FULL_NS, one_by_one=COST_KINDS[kind]
        )
        for kind, share in (("operators", OPERATORS_SHARE), ("python frames", FRAMES_SHARE))
    }
    return COST_KINDS | together


def _moment(trace: Trace) -> Moment:
    if trace.meta.kind in _ELSEWHERE:
        return Moment(0.0, 0.0, _ELSEWHERE[trace.meta.kind])
    found = trace.rows(_SPEED)[0]
    by_ops, by_launches = found["by_ops"], found["by_launches"]
    slowness = by_ops or by_launches
    if not slowness:
        return Moment(*VAGUE, "Nothing tells how fast the host is: the estimate is a wide one.")
    if by_ops and by_launches:
        slowness = min(by_ops, COLD * by_launches)
    said = f"An event costs this host {units.number(slowness)} times what it costs the one measured."
    return Moment(DOUBT[0] * slowness, DOUBT[1] * slowness, said)
