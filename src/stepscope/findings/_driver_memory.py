"""What the rules on driver allocations share: how many there are in steady state, and what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analyses.idle_gaps import Side, SpentIn
from stepscope.findings import Bounds
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.allocations import Allocation
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.python_frames import PythonFrame
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["DriverMemory", "clears_cache", "driver_memory", "is_cached"]

_MAKING = ("aten::empty", "aten::empty_strided")
"""Operators that only allocate memory."""
_WITH_RESULT = ("aten::cudnn_convolution", "aten::mm", "aten::addmm", "aten::bmm", "aten::cat")
"""Operators on the device that allocate their result without one of these."""
_OUTSIDE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class DriverMemory:
    """Calls to the driver for memory after the first step; per step, on average."""

    rows: tuple[Allocation, ...]
    allocations: float
    frees: float
    outside_frees: float
    """Frees outside of operators: the program itself returned memory, or dropped a tensor."""
    host_ns: float
    waited_ns: Bounds
    """How long the GPU was idle inside these calls; at most all of their time. Recording hardly stretches
    it, because it is the driver's."""
    drained_ns: float
    """Its other idle time: latency of launches into an empty queue, and gaps that started with a free."""


def driver_memory(
    mean_step: MeanStep, allocations: Table[Allocation], idle_gaps: Table[IdleGap]
) -> DriverMemory:
    """Sums up the calls to the driver.

    The GPU may still have work during a call, so only its idle time inside the calls is certainly lost. But a
    free waits until the GPU has finished, and then the GPU is idle until the host has launched again. And
    where the host sets the pace, all of the calls' time counts, if the GPU waited that long at all.
    """
    steps = max(1, mean_step.steps - 1)  # the table leaves out the first; a single step is no steady state
    rows = tuple(row for row in allocations if row.source == "driver" and mean_step.steps > 1)
    names = {row.call for row in rows}
    gaps = [gap for gap in idle_gaps if gap.device == mean_step.device and gap.side == Side.HOST]
    inside = mean_step.per_step(sum(gap.idle_ns for gap in gaps if gap.spent_in == SpentIn.ALLOCATION_CALL))
    after = [gap for gap in gaps if gap.drained_by in names and gap.spent_in != SpentIn.ALLOCATION_CALL]
    host_ns = sum(row.host_ns or 0 for row in rows) / steps
    most = min(host_ns, mean_step.starved_ns)
    low = min(inside, most)
    drained = mean_step.with_latency(low + mean_step.per_step(sum(gap.idle_ns for gap in after))) - low
    return DriverMemory(
        rows=rows,
        allocations=sum(row.allocations for row in rows) / steps,
        frees=sum(row.frees for row in rows) / steps,
        outside_frees=sum(row.frees for row in rows if row.op is None) / steps,
        host_ns=host_ns,
        waited_ns=(low, most),
        drained_ns=min(max(0.0, drained), mean_step.starved_ns - most),
    )


def is_cached(calls: DriverMemory, step_ops: Table[StepOp]) -> bool:
    """Whether torch's allocator keeps blocks; if not, every tensor is a call to the driver."""
    made = sum(
        row.per_step
        for row in step_ops
        if (row.name in _MAKING and row.within not in _MAKING) or (row.name in _WITH_RESULT and row.launches)
    )
    return not made or calls.allocations < made


def clears_cache(calls: DriverMemory, step_ops: Table[StepOp], python_frames: Table[PythonFrame]) -> bool:
    """Whether the program returns the allocator's blocks in every step: torch.cuda.empty_cache().

    The allocator itself frees blocks only inside an operator that could not get memory. The program makes the
    frees outside of operators, unless tensors are freed one by one.
    """
    if calls.frees < 1:
        return False
    if any((frame.name or "").endswith(": empty_cache") for frame in python_frames):
        return True
    return calls.outside_frees >= _OUTSIDE_SHARE * calls.frees and is_cached(calls, step_ops)
