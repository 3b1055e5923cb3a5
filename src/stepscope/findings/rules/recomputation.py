"""Activations are computed again in backward although memory is free."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Location, NotKnown, Saving, locations_of, rule
from stepscope.findings._device_memory import MemoryUse, memory_use
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
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
"""The work that models do again is of these kinds."""
REENTRANT = "CheckpointFunctionBackward"
"""With use_reentrant=True all of a layer's backward is inside of this operator, not only forward again."""
_FIX = """\
model.gradient_checkpointing_disable()          # Hugging Face; elsewhere call the layer instead of
x = layer(x)                                    # checkpoint(layer, x, use_reentrant=False)
if number % 2: x = checkpoint(layer, x, use_reentrant=False)   # every second layer, if all do not fit"""


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

    Gain: all device work that was launched by forward run again goes, as far as the device sets the pace, and
    what the device waited for the host in it, with the latency of its launches. At the most, where the host
    sets the pace, all the time that the host spent in it goes, and with it what checkpointing itself costs:
    the rest of the operators of backward that made it run again, and no more than that in forward, where
    tensors are put aside. Without checkpointing more memory is taken. The trace does not tell how much: so
    this is never certain, and no more than possible where memory was not recorded.
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
        because=f"Forward run again inside backward takes {units.duration(device_ns)} of the GPU a step "
        f"({units.share(mean_step.share(device_ns))}), and the GPU waits {units.duration(starved_ns)} for it. "
        f"{_room(use)}",
        saving=Saving(starved_ns=(least, most), device_ns=(device_ns, device_ns)),
        certainty="likely" if use else "possible",
        fix=_FIX,
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
    """Host time of forward run again, and of what checkpointing itself costs at the most."""
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
        return "Whether memory is free is not known: record with profile_memory=True."
    return f"Tensors took {units.share(use.peak_share)} of {units.size(use.memory_bytes)} at the peak."
