"""Activations are computed again in backward although memory is free."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Location, NotKnown, Saving, locations_of, rule
from stepscope.findings._device_memory import MemoryUse, memory_use
from stepscope.findings._phrases import if_idle
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["recomputation"]

LEAST_SHARE = 0.01
CLAIMS = frozenset(
    {
        Claim(Time.STARVED, Part.RECOMPUTATION),
        Claim(Time.DEVICE, Part.MATMUL),
        Claim(Time.DEVICE, Part.ATTENTION),
        Claim(Time.DEVICE, Part.ELEMENTWISE),
        Claim(Time.DEVICE, Part.NORMALISATION),
    }
)
"""The repeated work is of these kinds."""
REENTRANT = "CheckpointFunctionBackward"
"""With use_reentrant=True this operator contains all of a layer's backward, not only the repeated forward."""
_FIX = """\
model.gradient_checkpointing_disable()    # Hugging Face
x = layer(x)                              # your code: instead of checkpoint(layer, x, use_reentrant=False)
x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)    # if not all fit"""


@rule(category=Category.MEMORY)
def recomputation(
    mean_step: MeanStep,
    facts: Facts,
    starving_phases: Table[StarvingPhase],
    step_ops: Table[StepOp],
    memory: Table[DeviceMemory],
    *,
    most_share: float = 0.70,
) -> Advice | None:
    """Activation checkpointing computes layers twice although memory is free.

    Gain:

    - at least: all GPU work that the repeated forward launched, as far as the GPU sets the pace, and what
      the GPU waited for it, with the latency of its launches.
    - at most: if the host sets the pace, all the host's time in it, and what checkpointing itself costs: the
      rest of the backward operators that ran it, and as much in forward, where tensors are put aside.

    The trace does not tell how much memory the activations need, so this is never certain, and only
    possible if memory was not recorded.
    """
    again = [row for row in starving_phases if row.phase == "recomputation"]
    device_ns = min(mean_step.busy_ns, mean_step.per_step(sum(row.device_ns for row in again)))
    starved_ns = min(mean_step.starved_ns, mean_step.per_step(sum(row.starved_ns for row in again)))
    if mean_step.share(device_ns + starved_ns) < LEAST_SHARE:
        return None
    use = _use(memory, facts)
    if use is not None and use.peak_share >= most_share:
        return None
    least = mean_step.with_latency(starved_ns)
    most = min(mean_step.starved_ns, max(least, mean_step.per_step(_host_ns(step_ops))))
    return Advice(
        title="Activations are computed twice" + (" while memory is free" if use else ""),
        because=f"Layers that run again inside backward take {units.duration(device_ns)} of GPU time a step "
        f"({units.share(mean_step.share(device_ns))})."
        + if_idle(starved_ns, "The GPU waits {} for them.")
        + f" {_room(use)}",
        saving=Saving(starved_ns=(least, most), device_ns=(device_ns, device_ns)),
        certainty="likely" if use else "possible",
        fix=fix_of(line(Change.RECOMPUTE_LESS, _FIX)),
        check="stepscope show phases: no recomputation; stepscope show memory: the peak still fits.",
        evidence={
            "recomputation_device_ns": round(device_ns),
            "recomputation_starved_ns": round(starved_ns),
            "peak_share": use.peak_share if use else None,
            "memory_bytes": use.memory_bytes if use else None,
        },
        claims=CLAIMS,
        locations=_locations(step_ops),
    )


def _host_ns(step_ops: Table[StepOp]) -> int:
    """Host time of the repeated forward, and of what checkpointing itself costs at most."""
    run_again = {row.within for row in step_ops if row.phase == "recomputation"}
    outer = [row for row in step_ops if row.phase == "backward" and row.name in run_again]
    names = {row.name for row in outer}
    again = sum(row.host_ns for row in step_ops if row.phase == "recomputation" and row.within in names)
    if REENTRANT in names or not outer:
        return again
    around = sum(row.host_ns for row in outer)
    return max(again, around + (around - again))


def _locations(step_ops: Table[StepOp]) -> tuple[Location, ...]:
    rows = [row for row in step_ops if row.phase == "recomputation" and row.user_frame]
    rows.sort(key=lambda row: -row.device_ns)
    return locations_of((row.user_frame, "runs again in backward") for row in rows)


def _use(memory: Table[DeviceMemory], facts: Facts) -> MemoryUse | None:
    try:
        return memory_use(memory, facts)
    except NotKnown:
        return None


def _room(use: MemoryUse | None) -> str:
    if use is None:
        return "Record with profile_memory=True to see whether memory is free."
    return f"Tensors took {units.share(use.peak_share)} of {units.size(use.memory_bytes)} at the peak."
