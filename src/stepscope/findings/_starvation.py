"""What the host did while the GPU waited for it: operators, Python between them, launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analyses.idle_gaps import Side, SpentIn
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.cpu_pauses import CpuPause
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings import Bounds
    from stepscope.findings.mean_step import MeanStep

__all__ = [
    "COMPUTED_SURELY",
    "Pauses",
    "Starvation",
    "around_computing",
    "computed_on_host",
    "partly_computed_on_host",
    "pauses_of",
    "starvation_of",
]

COMPUTED_SURELY = 0.7
"""Part of the waiting for operators on the CPU that goes at least: on the GPU each has to be launched."""
_PYTHON = (SpentIn.PYTHON, SpentIn.NOTHING_RECORDED)
_DISPATCH = (SpentIn.HOST_OP, SpentIn.RUNTIME_CALL)
_MUCH = 0.05
_MOSTLY = 0.5
"""What computes on the CPU has this part of its time, or more, in long operators. On the GPU, many short ones
would take as long to launch."""
_PAUSE_NS = 1_000_000
"""Between two operators Python takes microseconds."""
_LEAST_OF_PAUSE = 0.8
_FEW_OPS = 0.25
"""Time in operators beside a pause; with more of it, Python is what calls them."""


def computed_on_host(step_ops: Iterable[StepOp]) -> list[StepOp]:
    """Operators that the program calls and that compute on the CPU, without those of a data loader."""
    return [
        row
        for row in step_ops
        if row.within is None
        and not row.launches
        and row.phase != "dataloader"
        and row.computing_ns >= _MOSTLY * row.host_ns > 0
    ]


def partly_computed_on_host(
    step_ops: Iterable[StepOp],
    computed: Iterable[StepOp],
    cpu_pauses: Iterable[CpuPause],
    mean_step: MeanStep,
) -> list[StepOp]:
    """Operators of which some calls launch work and others compute on the CPU, as conversions do.

    The GPU waits for them no longer than they compute in its pauses, beside those that only compute.
    """
    left = sum(row.computing_ns for row in cpu_pauses if row.device == mean_step.device)
    left -= sum(row.starved_ns for row in computed)
    mixed = [
        replace(row, starved_ns=min(row.starved_ns, row.computing_ns))
        for row in step_ops
        if row.within is None
        and 0 < row.launches < row.calls
        and row.phase != "dataloader"
        and min(row.starved_ns, row.computing_ns) > 0
    ]
    whole = sum(row.starved_ns for row in mixed)
    part = min(1.0, max(0, left) / whole) if whole else 0.0
    return [replace(row, starved_ns=round(part * row.starved_ns)) for row in mixed] if part else []


def around_computing(
    cpu_pauses: Iterable[CpuPause], computed: Iterable[StepOp], mean_step: MeanStep
) -> float:
    """Idle time of the busiest GPU in a mean step beside these operators, in pauses that are mostly theirs.

    Where they take little of the steps it is nothing: an operator that took long once was interrupted.
    """
    if mean_step.share(mean_step.per_step(sum(row.starved_ns for row in computed))) < _MUCH:
        return 0.0
    rows = [row for row in cpu_pauses if row.device == mean_step.device]
    return mean_step.per_step(sum(row.idle_ns - row.computing_ns for row in rows))


@dataclass(frozen=True, slots=True)
class Starvation:
    """Idle time of the busiest GPU in the mean step, in ns, by what the launching thread did during it."""

    dispatch_ns: float
    """It was inside operators and runtime calls."""
    python_ns: float
    """It was outside of them: the program's own Python, or nothing that was recorded."""
    python_parts: float
    """In how many gaps it was there."""
    longest_python_ns: float
    """The longest of these gaps, divided by the number of steps."""
    latency_ns: float
    """It had launched already: the latency of the launch."""
    gaps: float
    """How many gaps ended with a launch."""
    drained_ns: float
    """The part of dispatch and Python that followed a call in which the host waited for the GPU."""

    @property
    def excess_python_ns(self) -> float:
        """Python beyond the time in operators: an eager program spends no more between them than in them."""
        return max(0.0, self.python_ns - self.dispatch_ns)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses of the launching thread in no operator, right after it waited for the GPU, in each step."""

    call: str
    """In which it waited."""
    per_step: float
    mean_ns: float
    bounds: Bounds
    """What they take of a mean step, at least and at most."""


def pauses_of(mean_step: MeanStep, idle_gaps: Iterable[IdleGap]) -> Pauses | None:
    """The longest pauses that come again in each step, if they are no ordinary Python.

    The longest one is left out of what they take at least: the process may have been interrupted.
    """
    rows = [gap for gap in idle_gaps if gap.device == mean_step.device and gap.side == Side.HOST]
    found: list[Pauses] = []
    for gap in rows:
        if gap.spent_in not in _PYTHON or not gap.drained_by or gap.gaps < max(2, mean_step.steps - 1):
            continue
        beside = (row for row in rows if row.drained_by == gap.drained_by and row.spent_in in _DISPATCH)
        if sum(row.idle_ns for row in beside) > _FEW_OPS * gap.idle_ns:
            continue
        usual_ns = (gap.idle_ns - gap.longest_ns) / (gap.gaps - 1)
        if usual_ns >= _PAUSE_NS:
            per_step = mean_step.per_step(gap.gaps)
            bounds = (_LEAST_OF_PAUSE * usual_ns * per_step, mean_step.per_step(gap.idle_ns))
            found.append(Pauses(gap.drained_by, per_step, gap.idle_ns / gap.gaps, bounds))
    return max(found, key=lambda one: one.bounds, default=None)


def starvation_of(mean_step: MeanStep, idle_gaps: Iterable[IdleGap]) -> Starvation:
    """What the host did while the GPU waited, in the mean step."""
    rows = [gap for gap in idle_gaps if gap.device == mean_step.device]
    python = [gap for gap in rows if gap.side == Side.HOST and gap.spent_in in _PYTHON]
    dispatch = [gap for gap in rows if gap.side == Side.HOST and gap.spent_in in _DISPATCH]
    latency = [gap for gap in rows if gap.side == Side.LAUNCH]

    def mean(gaps: Iterable[IdleGap]) -> float:
        return mean_step.per_step(sum(gap.idle_ns for gap in gaps))

    return Starvation(
        dispatch_ns=mean(dispatch),
        python_ns=mean(python),
        python_parts=mean_step.per_step(sum(gap.gaps for gap in python)),
        longest_python_ns=mean_step.per_step(max((gap.longest_ns for gap in python), default=0)),
        latency_ns=mean(latency),
        gaps=mean_step.per_step(sum(gap.gaps for gap in latency)),
        drained_ns=mean(gap for gap in (*dispatch, *python) if gap.drained_by),
    )
