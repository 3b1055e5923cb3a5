"""Which steps are alike, and how much the time of like steps varies."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._alike import ALIKE_READS, TOLERANCE, Like, like_steps
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StepClass", "step_classes"]


@dataclass(frozen=True, slots=True)
class StepClass:
    """Steps that do the same: as many passes over batches of the same shape, launched alike."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step_class: Annotated[int, "Number of the class; 0 has the most steps."]
    steps: Annotated[int, "How many steps are in it."]
    first_step: Annotated[int, "Number of the first of them."]
    first_steps: Annotated[str, "Their numbers, the first ten."]
    kind: Annotated[str | None, "Of serving: prefill, decode, mixed, draft or idle."]
    backward_passes: Annotated[
        int | None, "Micro-steps: passes of autograd in a step; NULL without operators."
    ]
    batch: Annotated[
        str | None,
        "Shape of what enters each forward pass; for serving the requests, or tokens up to a power of 2.",
    ]
    launched_by: Annotated[str | None, "graph, eager or mixed; NULL without kernels."]
    optimizer: Annotated[bool, "Whether an optimizer took a step in it."]
    kernels_min: Annotated[int, "Fewest kernels launched in a step."]
    kernels_max: Annotated[int, "Most kernels launched in a step."]
    mean_ns: Annotated[float, "Mean time of a step."]
    min_ns: Annotated[int, "Shortest step."]
    max_ns: Annotated[int, "Longest step."]
    deviation_ns: Annotated[float | None, "Standard deviation of the time (of a sample); NULL for one step."]
    variation_share: Annotated[float | None, "The same as a share of the mean."]


@analysis(reads=ALIKE_READS)
def step_classes(
    trace: Trace,
    *,
    kernel_tolerance: Annotated[
        float, "share by which the number of kernels of similar steps may differ"
    ] = TOLERANCE,
) -> Table[StepClass]:
    """Groups similar steps into classes, so that their times can be compared.

    Steps are similar if they have the same number of backward passes (gradient accumulation), batches of
    the same shape (if shapes were recorded), the same way of launching (replayed graphs or not), both or
    neither an optimizer step, and nearly the same number of kernels. The time is that of the step's window.
    """
    rows = [_row(trace.rank, number, like) for number, like in enumerate(like_steps(trace, kernel_tolerance))]
    return Table.of(StepClass, rows, [*how_steps_were_found(trace), *_what_is_missing(rows)])


def _row(rank: int, number: int, like: Like) -> StepClass:
    steps = [member.step for member in like.members]
    times = [step.dur_ns for step in steps]
    deviation = stdev(times) if len(times) > 1 else None
    middle = mean(times)
    return StepClass(
        rank=rank,
        step_class=number,
        steps=len(steps),
        first_step=steps[0].step,
        first_steps=", ".join(str(step.step) for step in steps[:10]) + (", …" if len(steps) > 10 else ""),
        kind=like.traits.kind,
        backward_passes=like.traits.backward_passes,
        batch=like.traits.batch,
        launched_by=like.traits.launched_by,
        optimizer=like.traits.optimizer,
        kernels_min=min(step.kernels for step in steps),
        kernels_max=max(step.kernels for step in steps),
        mean_ns=float(middle),
        min_ns=min(times),
        max_ns=max(times),
        deviation_ns=deviation,
        variation_share=deviation / middle if deviation is not None and middle else None,
    )


def _what_is_missing(rows: Sequence[StepClass]) -> list[str]:
    if not rows:
        return ["The profile has no events."]
    if any(row.batch is None and row.backward_passes is not None for row in rows):
        return ["What enters the model is not known for all steps: record with record_shapes=True."]
    return []
