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
from stepscope.findings._phrases import often
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["cache_clearing"]

_FIX = """\
# delete torch.cuda.empty_cache() from the loop: freed tensors leave their blocks to the next step"""
_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # if memory was fragmented"


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
    """Every step returns the allocator's cached memory to the driver and requests it again.

    Gain: these calls go, and so does the waiting for the GPU in those that free memory.

    - at most and at least: what a simulation without these calls says, with its error either way.
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
        because=(
            f"torch.cuda.empty_cache() returns {often(calls.frees, 'block')} to the driver"
            if seen
            else f"The program returns {often(calls.frees, 'block')} to the driver outside of any operator, "
            "as torch.cuda.empty_cache() does"
        )
        + (f", and the step requests {units.tally(calls.allocations)} again" if calls.allocations else "")
        + f". These calls take {units.duration(calls.host_ns)} of host time a step.",
        saving=simulated(mean_step, changed_steps_by_no_driver_memory),
        certainty="certain" if seen else "likely",
        fix=fix_of(line(Change.KEEP_CACHE, _FIX), line(Change.ALLOCATOR, _SEGMENTS)),
        check="stepscope show allocations: no row has the source driver.",
        evidence={
            "allocations_per_step": calls.allocations,
            "frees_per_step": calls.frees,
            "host_ns": round(calls.host_ns),
            "idle_in_calls_ns": round(calls.waited_ns[0]),
            "idle_after_calls_ns": round(calls.drained_ns),
        },
        claims=frozenset({Claim(Time.STARVED, Part.ALLOCATION)}),
        locations=locations_of(
            (row.user_frame, often(row.per_step, "free")) for row in calls.rows if row.frees
        ),
    )
