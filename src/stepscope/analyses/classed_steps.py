"""Which class of similar steps each step belongs to."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._alike import ALIKE_READS, TOLERANCE, like_steps
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ClassedStep", "classed_steps"]


@dataclass(frozen=True, slots=True)
class ClassedStep:
    """A step and its class."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number of the step."]
    step_class: Annotated[int, "Number of its class, as `step_classes` has it."]
    start_ns: Annotated[int, "When the step began."]
    dur_ns: Annotated[int, "How long it took."]


@analysis(reads=ALIKE_READS)
def classed_steps(
    trace: Trace,
    *,
    kernel_tolerance: Annotated[
        float, "Part by which the kernels of like steps may differ in number."
    ] = TOLERANCE,
) -> Table[ClassedStep]:
    """Says of every step to which class of similar steps it belongs; `step_classes` describes the classes."""
    rows = [
        ClassedStep(trace.rank, member.step.step, number, member.step.start_ns, member.step.dur_ns)
        for number, like in enumerate(like_steps(trace, kernel_tolerance))
        for member in like.members
    ]
    rows.sort(key=lambda row: (row.start_ns, row.step))
    notes = how_steps_were_found(trace) if rows else ["The profile has no events."]
    return Table.of(ClassedStep, rows, notes)
