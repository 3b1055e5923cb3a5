"""The recording began too early."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses._caveats import Caveat
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.start_ups import StartUp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.claims import Claim, Time
from stepscope.tables import Table

__all__ = ["warm_up"]

_FIX = """\
with profile(schedule=schedule(wait=5, warmup=2, active=5, repeat=1), on_trace_ready=...) as profiler:
    for batch in loader:
        train(batch)
        profiler.step()"""


@rule(category=Category.RECORDING)
def warm_up(
    trust: Table[Caveat],
    steps_by_any: Table[Step],
    compilations: Table[Compilation],
    start_ups: Table[StartUp],
    *,
    compiling_share: float = 0.5,
) -> Advice | None:
    """The first recorded step is much longer than the others, so the mean step is not that of a long run.

    Gain: none. A long run starts once, so this is about the recording, which should begin later. If more than
    `compiling_share` of the extra time is compiling or start-up, there is no finding: these have their own.
    """
    found = next((doubt for doubt in trust if doubt.what == "warm-up"), None)
    first = next(iter(steps_by_any), None)
    if found is None or first is None:
        return None
    effect = found.effect_ns or 0
    compiling = sum(row.total_ns for row in compilations if row.step == first.step)
    starting = sum(row.total_ns for row in start_ups if row.step == first.step)
    if compiling + starting > compiling_share * effect:
        return None
    return Advice(
        title="The first recorded step is longer than the others",
        because=f"{found.explanation} That makes the mean recorded step "
        f"{units.duration(effect / len(steps_by_any))} longer than the mean step of a long run.",
        saving=Saving(),
        certainty="certain",
        fix=_FIX,
        check="stepscope show trust: no 'warm-up'.",
        evidence={
            "step": first.step,
            "first_step_ns": first.dur_ns,
            "excess_ns": effect,
            "compiling_ns": compiling,
            "start_up_ns": starting,
        },
        claims=frozenset({Claim(Time.RECORDING)}),
    )
