"""Every step requests memory from the driver."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._driver_memory import DriverMemory, driver_memory, is_cached
from stepscope.findings._phrases import often, times
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["driver_allocations"]

LEAST_CALLS = 1.0
"""In a step. A new block once in a while is normal: the allocator is warming up."""
# Pinned host memory: cudaHostAlloc, hipHostMalloc, cuMemHostAlloc, cudaHostRegister …
_PINNED = late_pattern(r"Host(Alloc|Malloc|Register|Free|Unregister)|FreeHost|MallocHost")
_UNCACHED = "unset PYTORCH_NO_CUDA_MEMORY_CACHING   # while it is set, every tensor is a call to the driver"
_LOADER = "DataLoader(..., pin_memory=True)                     # its thread pins memory and reuses it"
_BUFFER = """\
buffer = torch.empty(shape, pin_memory=True)         # once, before the loop; then buffer.copy_(batch)"""
_SIZES = """\
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # segments grow, so sizes may vary
batch = pad(batch, to=longest)                                     # fixed sizes: blocks are reused
# no torch.cuda.empty_cache() in the loop: the next step requests the same memory again"""


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
    """Every step requests memory from the driver, or returns it.

    Gain: these calls go, and so does the waiting for the GPU in those that free memory.

    - at most and at least: what a simulation without these calls says, with its error either way.
    """
    calls = driver_memory(mean_step, allocations, idle_gaps)
    if (
        calls.allocations + calls.frees < LEAST_CALLS
        or mean_step.share(calls.waited_ns[1] + calls.drained_ns) < least_share
    ):
        return None
    cached = is_cached(calls, step_ops)
    return Advice(
        title="Every step requests memory from the driver",
        because=f"A step makes {' and '.join(_counts(calls))} in the driver ({', '.join(_names(calls))}). "
        f"They take {units.duration(calls.host_ns)} of host time."
        + ("" if cached else " That is one for every new tensor: torch's allocator keeps no blocks."),
        saving=simulated(mean_step, changed_steps_by_no_driver_memory),
        certainty="certain",
        fix=_fix(calls, cached=cached),
        check="stepscope show allocations: no row has the source driver.",
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
            (row.user_frame, f"{row.call}: {often(row.per_step, 'call')}") for row in calls.rows
        ),
    )


def _counts(calls: DriverMemory) -> list[str]:
    counts = ((calls.allocations, "allocation"), (calls.frees, "free"))
    return [times(count, what) for count, what in counts if count]


def _names(calls: DriverMemory) -> list[str]:
    return list(dict.fromkeys(row.call for row in calls.rows if row.call))[:3]


def _fix(calls: DriverMemory, *, cached: bool) -> str:
    if not cached:
        return _UNCACHED
    pinned = sum(row.host_ns or 0 for row in calls.rows if _PINNED.search(row.call or ""))
    everything = sum(row.host_ns or 0 for row in calls.rows)
    return fix_of(line(Change.PINNED, _LOADER), _BUFFER) if 2 * pinned > everything else _SIZES
