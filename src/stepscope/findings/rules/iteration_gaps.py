"""A server leaves the GPU idle between two iterations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope import units
from stepscope.analyses.devices import Device
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings._inference import engine_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["iteration_gaps"]

_ANY = """\
schedule(next_batch)    # while the GPU still runs this one: launch before you read the tokens
tokens = tokens.to("cpu", non_blocking=True)    # read them one iteration later
queue.put(tokens)    # detokenise and answer in another thread or process"""


@rule(category=Category.INFERENCE)
def iteration_gaps(
    mean_step: MeanStep, iterations: Table[Iteration], devices: Table[Device], *, least_share: float = 0.10
) -> Advice | None:
    """Between iterations of a server the GPU is idle, waiting for scheduling and Python.

    Gain: the host can prepare the next iteration while the GPU runs this one.

    - at most: the idle time between iterations, or the GPU's busy time if that is shorter.
    - at least: half of that, because recording stretched the gap, and some of the work needs the tokens of
      the iteration before.
    """
    rows = [row for row in iterations if row.source == "annotation"]
    if not any(row.kind for row in rows):
        return None
    if len(rows) < 2:
        raise NotKnown("the profile has only one iteration", record="several iterations of the server")
    gap = _idle_between(rows, devices) / (len(rows) - 1)
    period = mean_step.step_ns + gap
    if not gap or gap < least_share * period:
        return None
    high = min(gap, sum(row.busy_ns for row in rows) / len(rows))
    engine = engine_of(rows)
    told = [row.host_gap_ns for row in rows if row.host_gap_ns is not None]
    host = sum(told) / len(told) if told else None
    return Advice(
        title="The GPU is idle between iterations",
        because=f"Between two iterations the GPU is idle for {units.duration(gap)}, "
        f"{units.share(gap / period)} of the time. An iteration takes {units.duration(mean_step.step_ns)}."
        + (f" The host spends {units.duration(host)} between two iterations." if host else ""),
        saving=Saving(waited_ns=(0.5 * high, high)),
        certainty="likely",
        fix=fix_of(line(Change.SCHEDULE_AHEAD, _ANY)),
        check="stepscope show iterations: each starts when the one before ends (start_ns + dur_ns).",
        evidence={
            "idle_between_ns": round(gap),
            "idle_between_share": gap / period,
            "iterations": len(rows),
            "host_gap_ns": host,
            "engine": engine,
        },
        claims=frozenset({Claim(Time.STARVED, Part.ITERATIONS)}),
    )


def _idle_between(rows: Sequence[Iteration], devices: Iterable[Device]) -> float:
    """Time between the iterations, less what the GPU ran then: samplers often run outside the ranges."""
    ends = [row.start_ns + row.dur_ns for row in rows]
    gaps = sum(max(0, row.start_ns - end) for row, end in zip(rows[1:], ends, strict=False))
    busy = max((row.busy_ns for row in devices if row.window == "span"), default=0)
    return max(0.0, gaps - max(0, busy - sum(row.busy_ns for row in rows)))
