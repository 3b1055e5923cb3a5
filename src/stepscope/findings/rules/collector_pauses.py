"""Python's garbage collector stops the program in its steps."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.collector_pauses import CollectorPause
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import times as counted
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["collector_pauses"]

_EVERY = 100
_LOOP = f"""\
import gc
gc.collect(); gc.freeze()    # after the first steps: what lives on is not looked at again
gc.disable()
for number, batch in enumerate(loader):
    train(batch)
    if number % {_EVERY} == 0:
        gc.collect()         # on all ranks in the same step, so that none waits for another"""
_CALLED = "# a full collection in every step is one that is asked for: look for gc.collect()"


@rule(category=Category.HOST)
def collector_pauses(
    mean_step: MeanStep,
    collector_pauses: Table[CollectorPause],
    *,
    least_share: float = 0.01,
    recurring_share: float = 0.5,
) -> Advice | None:
    """Python's garbage collector stops the host in the steps, and nothing is launched meanwhile.

    Gain: recording does not make the collector slower, so its pauses count as they were measured.

    - at most: all pauses in a step, as far as the GPU waits for the host at all.
    - at least: the part of the pauses in which the GPU was idle and waited for a launch, less what one
      collection every 100 steps costs. Without a GPU, all of them, less the same.
    - at least nothing: if fewer than `recurring_share` of three or more steps have a pause that counts. One
      that comes every few hundred steps weighs too much in a short profile.
    """
    rows = [row for row in collector_pauses if row.step is not None]
    total = mean_step.per_step(sum(row.total_ns for row in rows))
    if mean_step.device is None:
        most, waited = min(total, mean_step.step_ns), total
    else:
        most = min(total, mean_step.starved_ns)
        waited = mean_step.per_step(sum(row.idle_ns or 0 for row in rows))
    if not rows or mean_step.share(most) < least_share:
        return None
    longest = max(row.longest_ns for row in rows)
    steps = {row.step for row in rows if row.total_ns * 10 >= total}
    rare = mean_step.steps >= 3 and len(steps) < recurring_share * mean_step.steps
    least = 0.0 if rare else max(0.0, min(waited, most) - longest / _EVERY)
    called = sum(row.pauses for row in rows if row.generation == 2) >= mean_step.steps
    fix = line(Change.COLLECTOR, _LOOP)
    idle = f", {units.duration(waited)} of it while the GPU waits" if mean_step.device else ""
    return Advice(
        title="The garbage collector stops the program in its steps",
        because=f"Python's garbage collector runs {counted(sum(row.pauses for row in rows), 'time')} in "
        f"{counted(mean_step.steps, 'step')} and stops the host for {units.duration(total)} of a step"
        f"{idle}. The longest pause takes {units.duration(longest)}."
        + (f" Long pauses are in {counted(len(steps), 'step')} only." if rare else ""),
        saving=Saving(waited_ns=(least, most)),
        certainty="possible" if rare else "likely",
        fix=fix_of(_CALLED, fix) if called else fix_of(fix),
        check="stepscope show collector_pauses: no row inside a step.",
        evidence={
            "pause_ns": round(total),
            "pause_share": mean_step.share(total),
            "idle_ns": round(waited) if mean_step.device else None,
            "pauses_per_step": mean_step.per_step(sum(row.pauses for row in rows)),
            "longest_ns": longest,
            "steps_with_pauses": len(steps),
        },
        claims=frozenset({Claim(Time.WAITED, Part.PYTHON), Claim(Time.STARVED, Part.PYTHON)}),
    )
