"""torch.cuda.empty_cache() is called in the steps."""

from __future__ import annotations

from dataclasses import replace

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.cache_clearings import CacheClearing
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.python_frames import PythonFrame
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._driver_memory import DriverMemory, clears_cache, driver_memory
from stepscope.findings._phrases import if_idle, often
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["cache_clearing"]

_FIX = """\
# delete torch.cuda.empty_cache() from the loop: freed tensors leave their blocks to the next step"""
_COLLECTOR = """\
# and gc.collect() with it, if it is called: Python frees tensors without it, and runs it by itself"""
_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # if memory was fragmented"

_COLLECTION_NS = 10_000_000
"""A full collection looks at all objects of the program. With torch imported these are hundreds of thousands,
and each takes some tens of ns: shorter pauses are other Python code."""


@rule(category=Category.MEMORY)
def cache_clearing(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    allocations: Table[Allocation],
    idle_gaps: Table[IdleGap],
    step_ops: Table[StepOp],
    python_frames: Table[PythonFrame],
    cache_clearings: Table[CacheClearing],
    changed_steps_by_no_driver_memory: Table[ChangedStep],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Every step returns the allocator's cached memory to the driver and requests it again.

    Gain: these calls go, and so does the waiting for the GPU in those that free memory.

    - at most and at least: what a simulation without these calls says, with its error either way.
    - at most also, without stacks: the GPU's waiting in a long pause of the host right before these frees, as
      gc.collect() is mostly called with it.
    """
    calls = driver_memory(mean_step, allocations, idle_gaps)
    if not clears_cache(calls, step_ops, python_frames):
        return None
    pause_ns = 0.0 if python_frames else _collecting_ns(mean_step, cache_clearings)
    if mean_step.share(calls.waited_ns[1] + calls.drained_ns + pause_ns) < least_share:
        return None
    seen = any((frame.name or "").endswith(": empty_cache") for frame in python_frames)
    claimed = (Part.ALLOCATION, Part.PYTHON) if pause_ns else (Part.ALLOCATION,)
    return Advice(
        title="Every step empties torch's memory cache",
        because=_because(calls, pause_ns, seen=seen),
        saving=_with_pause(simulated(mean_step, changed_steps_by_no_driver_memory), pause_ns, mean_step),
        certainty="certain" if seen else "likely",
        fix=fix_of(
            line(Change.KEEP_CACHE, _FIX),
            *([_COLLECTOR] if pause_ns else []),
            line(Change.ALLOCATOR, _SEGMENTS),
        ),
        check="stepscope show allocations: no row has the source driver.",
        evidence={
            "allocations_per_step": calls.allocations,
            "frees_per_step": calls.frees,
            "host_ns": round(calls.host_ns),
            "idle_in_calls_ns": round(calls.waited_ns[0]),
            "idle_after_calls_ns": round(calls.drained_ns),
            "idle_before_calls_ns": round(pause_ns),
        },
        claims=frozenset(Claim(Time.STARVED, part) for part in claimed),
        locations=locations_of(
            (row.user_frame, often(row.per_step, "free")) for row in calls.rows if row.frees
        ),
    )


def _because(calls: DriverMemory, pause_ns: float, *, seen: bool) -> str:
    returned = often(calls.frees, "block")
    said = (
        f"torch.cuda.empty_cache() returns {returned} to the driver"
        if seen
        else f"The program returns {returned} to the driver outside of any operator, "
        "as torch.cuda.empty_cache() does"
    )
    again = f", and the step requests {units.tally(calls.allocations)} again" if calls.allocations else ""
    return f"{said}{again}. These calls take {units.duration(calls.host_ns)} of host time a step." + if_idle(
        pause_ns,
        "Right before them the GPU waits {} of a step while the host records nothing: very likely that is "
        "gc.collect(), which is mostly called with it. with_stack=True would show it.",
    )


def _collecting_ns(mean_step: MeanStep, clearings: Table[CacheClearing]) -> float:
    """The GPU's waiting in a step in pauses right before, if most steps have one as long as a collection."""
    rows = [row for row in clearings if row.pause_ns >= _COLLECTION_NS]
    if 2 * len({row.step for row in rows}) <= mean_step.steps:
        return 0.0
    # After the last one nothing is launched any more, so nothing tells that the GPU waits for a launch.
    unended = len(rows) > 1 and not rows[-1].idle_ns
    return min(mean_step.starved_ns, sum(row.idle_ns for row in rows) / (mean_step.steps - unended))


def _with_pause(saving: Saving, pause_ns: float, mean_step: MeanStep) -> Saving:
    """The same saving, if the pause may go as well. Recording does not make the collector slower."""
    least, most = saving.waited_ns
    more = min(pause_ns, mean_step.starved_ns - saving.starved_ns[1])
    return replace(saving, waited_ns=(least, most + max(0.0, more)))
