"""torch.cuda.empty_cache() is called in the steps."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.python_frames import PythonFrame
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._driver_memory import clears_cache, driver_memory
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["cache_clearing"]

_FIX = """\
# delete torch.cuda.empty_cache() from the loop: tensors that are gone leave blocks for the next step
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # if it was there against fragmentation"""


@rule(category=Category.MEMORY)
def cache_clearing(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    allocations: Table[Allocation],
    idle_gaps: Table[IdleGap],
    step_ops: Table[StepOp],
    python_frames: Table[PythonFrame],
    changed_steps_by_no_driver_memory: Table[ChangedStep],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Every step gives the allocator's memory back to the driver and asks for it again.

    Gain: these calls go, and so does the waiting for the device in those that free. How much shorter a step
    is then, is what a simulation says, without the profiler.
    """
    calls = driver_memory(mean_step, allocations, idle_gaps)
    if (
        not clears_cache(calls, step_ops, python_frames)
        or mean_step.share(calls.waited_ns[1] + calls.drained_ns) < least_share
    ):
        return None
    seen = any((frame.name or "").endswith(": empty_cache") for frame in python_frames)
    return Advice(
        title="Every step empties torch's memory cache",
        because=f"A step frees {units.tally(calls.frees)} blocks in the driver outside of any operator and "
        f"asks for {units.tally(calls.allocations)} again: {units.duration(calls.host_ns)} of host time, "
        + ("by torch.cuda.empty_cache()." if seen else "as torch.cuda.empty_cache() does."),
        saving=simulated(mean_step, changed_steps_by_no_driver_memory),
        certainty="certain" if seen else "likely",
        fix=_FIX,
        check="stepscope show allocations: no row says driver.",
        evidence={
            "allocations_per_step": calls.allocations,
            "frees_per_step": calls.frees,
            "host_ns": round(calls.host_ns),
            "idle_in_calls_ns": round(calls.waited_ns[0]),
            "idle_after_calls_ns": round(calls.drained_ns),
        },
        claims=frozenset({Claim(Time.STARVED, Part.ALLOCATION)}),
        locations=locations_of(
            (row.user_frame, f"{units.tally(row.per_step)} frees a step") for row in calls.rows if row.frees
        ),
    )
