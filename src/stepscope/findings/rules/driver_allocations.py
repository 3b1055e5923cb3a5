"""Memory is asked of the driver in every step."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._driver_memory import DriverMemory, driver_memory, is_cached
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["driver_allocations"]

LEAST_CALLS = 1.0
"""Of a step. A new block once in a while is how an allocator gets warm."""
# Memory of the host that devices may read: cudaHostAlloc, hipHostMalloc, cuMemHostAlloc, cudaHostRegister …
_PINNED = re.compile(r"Host(Alloc|Malloc|Register|Free|Unregister)|FreeHost|MallocHost")
_UNCACHED = "unset PYTORCH_NO_CUDA_MEMORY_CACHING   # every tensor is a call of the driver while it is set"
_PINNED_FIX = """\
DataLoader(..., pin_memory=True)                     # its thread pins, and reuses what it pinned
buffer = torch.empty(shape, pin_memory=True)         # once, before the loop; then buffer.copy_(batch)"""
_SIZES = """\
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # blocks grow, sizes may vary
batch = pad(batch, to=longest)                                     # fixed sizes: blocks are used again
# no torch.cuda.empty_cache() in the loop: it gives away what the next step asks for again"""


@rule(category=Category.MEMORY, yields_to=("cache_clearing",))
def driver_allocations(
    mean_step: MeanStep,
    allocations: Table[Allocation],
    idle_gaps: Table[IdleGap],
    step_ops: Table[StepOp],
    changed_steps_by_no_driver_memory: Table[ChangedStep],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Memory is asked of the driver, or given back to it, in every step.

    Gain: these calls go, and so does the waiting for the device in those that free. How much shorter a step
    is then, is what a simulation says, without the profiler.
    """
    calls = driver_memory(mean_step, allocations, idle_gaps)
    if (
        calls.allocations + calls.frees < LEAST_CALLS
        or mean_step.share(calls.waited_ns[1] + calls.drained_ns) < least_share
    ):
        return None
    cached = is_cached(calls, step_ops)
    return Advice(
        title="Memory is asked of the driver in every step",
        because=f"A step makes {units.tally(calls.allocations)} allocations and {units.tally(calls.frees)} "
        f"frees in the driver ({', '.join(_names(calls))}), {units.duration(calls.host_ns)} of host time."
        + ("" if cached else " There are as many as tensors: torch's allocator keeps no blocks."),
        saving=simulated(mean_step, changed_steps_by_no_driver_memory),
        certainty="certain",
        fix=_fix(calls, cached=cached),
        check="stepscope show allocations: no row says driver.",
        evidence={
            "allocations_per_step": calls.allocations,
            "frees_per_step": calls.frees,
            "host_ns": round(calls.host_ns),
            "idle_in_calls_ns": round(calls.waited_ns[0]),
            "idle_after_calls_ns": round(calls.drained_ns),
        },
        claims=frozenset({Claim(Time.STARVED, Part.ALLOCATION)}),
        locations=()
        if not cached
        else locations_of(
            (row.user_frame, f"{row.call}, {units.tally(row.per_step)} a step") for row in calls.rows
        ),
    )


def _names(calls: DriverMemory) -> list[str]:
    return list(dict.fromkeys(row.call for row in calls.rows if row.call))[:3]


def _fix(calls: DriverMemory, *, cached: bool) -> str:
    if not cached:
        return _UNCACHED
    pinned = sum(row.host_ns or 0 for row in calls.rows if _PINNED.search(row.call or ""))
    everything = sum(row.host_ns or 0 for row in calls.rows)
    return _PINNED_FIX if 2 * pinned > everything else _SIZES
