"""What a run does once lies inside of the recorded steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stepscope import units
from stepscope.analyses.start_ups import StartUp
from stepscope.findings import Advice, Category, Location, Saving, locations_of, rule
from stepscope.findings._compiling import RECURRING_STEPS
from stepscope.findings._phrases import times as counted
from stepscope.findings.claims import Claim, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["start_up"]

_FIX = """\
with profile(schedule=schedule(wait=5, warmup=2, active=5, repeat=1), on_trace_ready=...) as profiler:
    for batch in loader:
        train(batch)
        profiler.step()"""
_SAYS = {
    "initialisation": "starting the device",
    "code loading": "loading code and kernels",
    "first use": "first calls of operators, which set up or tune libraries",
}


@rule(category=Category.RECORDING)
def start_up(
    mean_step: MeanStep, start_ups: Table[StartUp], *, least_share: float = 0.05, often_share: float = 0.5
) -> Advice | None:
    """The recorded steps start the device, load kernels or set up libraries, which a run does once.

    Gain: none. A long run pays it once, and its steps stay as they are. The finding says how much of the
    recorded steps it is, so that nobody reads them as those of a long run. What recurs in `often_share` of
    three steps or more is no start-up.
    """
    rows = _once(mean_step, start_ups, often_share)
    total = sum(row.total_ns for row in rows)
    share = mean_step.share(mean_step.per_step(total))
    if not rows or share < least_share:
        return None
    kinds = Counter[str]()
    for row in rows:
        kinds[row.kind] += row.total_ns
    told = ", ".join(f"{_SAYS[kind]} {units.duration(ns)}" for kind, ns in kinds.most_common())
    longest = max(rows, key=lambda row: row.longest_ns)
    within = f" in {longest.op}" if longest.op else ""
    steps = sorted({row.step for row in rows if row.step is not None})
    return Advice(
        title="The recording contains the start of the program",
        because=f"{units.duration(total)} or {units.share(share)} of the recorded steps is what a run does "
        f"once: {told}. It is in {counted(len(steps), 'step')} of {units.count(mean_step.steps)}; the "
        f"longest is {longest.call}{within}, {units.duration(longest.longest_ns)}. A long run pays it once: "
        "its steps are shorter, and what limits them may be something else.",
        saving=Saving(),
        certainty="certain",
        fix=_FIX,
        check="stepscope show start_ups: no row inside a step.",
        locations=_locations(rows),
        evidence={
            "start_up_ns": total,
            "start_up_share": share,
            "steps_with_start_up": len(steps),
            **{f"{kind.replace(' ', '_')}_ns": ns for kind, ns in sorted(kinds.items())},
        },
        claims=frozenset({Claim(Time.RECORDING)}),
    )


def _once(mean_step: MeanStep, start_ups: Table[StartUp], often_share: float) -> list[StartUp]:
    """What is inside of steps, without calls that come back in most of them."""
    rows = [row for row in start_ups if row.step is not None]
    steps = {call: {row.step for row in rows if row.call == call} for call in {row.call for row in rows}}
    often = max(RECURRING_STEPS, often_share * mean_step.steps)
    return [row for row in rows if len(steps[row.call]) < often]


def _locations(rows: Sequence[StartUp]) -> tuple[Location, ...]:
    """The user's functions that led to most of it."""
    spent = Counter[str]()
    for row in rows:
        if row.user_frame:
            spent[row.user_frame] += row.total_ns
    return locations_of((frame, units.duration(ns)) for frame, ns in spent.most_common())
