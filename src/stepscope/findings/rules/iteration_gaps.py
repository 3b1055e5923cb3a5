"""What a server does between two iterations while the device has nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope import units
from stepscope.analyses.devices import Device
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings._inference import engine_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["iteration_gaps"]

_BY_ENGINE = {
    "vLLM": "vllm serve MODEL --async-scheduling    # the default from 0.14 on: no --no-async-scheduling",
    "SGLang": "python -m sglang.launch_server ...    # without --disable-overlap-schedule",
}
_ANY = """\
schedule(batch + 1)    # while the device still runs this one: launch before reading the tokens
tokens = tokens.to("cpu", non_blocking=True)    # read them one iteration later
queue.put(tokens)    # detokenise and answer in another thread or process"""


@rule(category=Category.INFERENCE)
def iteration_gaps(
    mean_step: MeanStep, iterations: Table[Iteration], devices: Table[Device], *, least_share: float = 0.10
) -> Advice | None:
    """Between iterations of a server the device waits for scheduling and for Python.

    Gain: if the host prepares the next iteration while the device runs this one, the gap is hidden as far as
    the device is busy: at the most the shorter of the two. At the least half of it, since recording has
    stretched the gap and some preparation needs the tokens of the iteration before.
    """
    rows = [row for row in iterations if row.source == "annotation"]
    if not any(row.kind for row in rows):
        return None
    if len(rows) < 2:
        raise NotKnown("One iteration has no gap.", record="several iterations of the server")
    gap = _idle_between(rows, devices) / (len(rows) - 1)
    period = mean_step.step_ns + gap
    if not gap or gap < least_share * period:
        return None
    high = min(gap, sum(row.busy_ns for row in rows) / len(rows))
    engine = engine_of(rows)
    told = [row.host_gap_ns for row in rows if row.host_gap_ns is not None]
    host = sum(told) / len(told) if told else None
    return Advice(
        title="The device waits between iterations",
        because=f"From one iteration to the next the GPU has {units.duration(gap)} of nothing to do, "
        f"{units.share(gap / period)} of the time; an iteration takes {units.duration(mean_step.step_ns)}. The "
        f"host is outside the ranges of its iterations for {units.duration(host)}.",
        saving=Saving(waited_ns=(0.5 * high, high)),
        certainty="likely",
        fix=_BY_ENGINE.get(engine or "", _ANY),
        check="stepscope show iterations: each starts where the one before ended (start_ns + dur_ns).",
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
    """Time between the iterations less what ran then on the device: samplers often run outside the ranges."""
    ends = [row.start_ns + row.dur_ns for row in rows]
    gaps = sum(max(0, row.start_ns - end) for row, end in zip(rows[1:], ends, strict=False))
    busy = max((row.busy_ns for row in devices if row.window == "span"), default=0)
    return max(0.0, gaps - max(0, busy - sum(row.busy_ns for row in rows)))
