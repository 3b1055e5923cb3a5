"""Stages of a pipeline that wait for one another."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.fixes import fix_of
from stepscope.runs.analyses.pipeline_stages import PipelineStage
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import WAITING
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["pipeline_bubbles"]

_FIX = """\
schedule = ScheduleInterleaved1F1B(stages, n_microbatches={more})    # or ScheduleZBVZeroBubble
# as many layers' time on every stage: the first and the last have embedding and loss"""


@rule(category=Category.COMMUNICATION)
def pipeline_bubbles(
    run_step: RunMeanStep, pipeline_stages: Table[PipelineStage], *, least_share: float = 0.10
) -> Advice | None:
    """Stages of a pipeline are idle while they wait for micro-batches of the others.

    Gain: with m micro-batches, each of p equal stages waits for (p − 1) / (m + p − 1) of the step.

    - at most: the bubble of the stage that has least, for the busiest stage sets the pace; and no more than
      what a play of all ranks without waiting loses.
    - at least: nothing. More micro-batches are smaller ones, and smaller kernels fill a device less.
    """
    stages = [row for row in pipeline_stages if row.bubble_ns]
    if len(stages) < 2:
        return None
    least = min(stages, key=lambda row: row.bubble_ns)
    worst = max(stages, key=lambda row: row.bubble_ns)
    most = run_step.saving([RankChange(None, "wait")], least.bubble_ns).waited_ns[1]
    if run_step.share(least.bubble_ns) < least_share or not most:
        return None
    batches = worst.micro_batches
    uneven = worst.bubble_ns - least.bubble_ns
    return Advice(
        title=f"Stages of the pipeline idle for {units.share(least.bubble_share)} of a step or more",
        because=f"A pipeline of {units.counted(len(stages), 'stage')}"
        + (f" with {units.counted(batches, 'micro-batch')}" if batches else "")
        + f" ({worst.schedule}) leaves its stages idle for "
        f"{units.between(least.bubble_ns, worst.bubble_ns)} of a step of {units.duration(run_step.step_ns)}."
        + (
            f" Stage {worst.stage} waits {units.duration(uneven)} longer than stage {least.stage}: the "
            "stages do not have the same work."
            if uneven > 0.1 * run_step.step_ns
            else ""
        ),
        saving=Saving(waited_ns=(0.0, most)),
        certainty="likely",
        fix=fix_of(_FIX.format(more=2 * batches if batches else "4 * stages")),
        check="stepscope show pipeline_stages RUN: bubble_share falls.",
        evidence={
            "stages": len(stages),
            "micro_batches": batches,
            "schedule": worst.schedule,
            "least_bubble_ns": round(least.bubble_ns),
            "most_bubble_ns": round(worst.bubble_ns),
            "group": worst.group,
        },
        claims=WAITING,
    )
