"""Most of the GPU's memory is free, and the host cannot keep the GPU busy."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.devices import Device
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._device_memory import memory_use
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["memory_room"]

LEAST_IDLE_SHARE = 0.10
"""Of the step. A GPU that is busy and full gains nothing from larger batches."""
_FIX = fix_of(
    line(
        Change.BATCH,
        "batch_size *= 2    # in training with the learning rate as your recipe says",
        why="more work for the same launches",
    ),
    line(
        Change.ACCUMULATION,
        "# with gradient accumulation: half as many micro-steps of twice the size give the same result",
    ),
)


@rule(category=Category.MEMORY)
def memory_room(
    mean_step: MeanStep,
    facts: Facts,
    memory: Table[DeviceMemory],
    devices: Table[Device],
    starving_phases: Table[StarvingPhase],
    *,
    room_share: float = 0.50,
) -> Advice | None:
    """Less than half of the memory is used while the GPU waits or is not filled: a larger batch fits.

    Gain: none for a step. The report says what each sample gains if the batch is doubled:

    - at most: half of the GPU's waiting, because the host does the same for twice the samples (not the
      waiting for data, which takes twice as long to load); and half of the GPU time in which
      multiprocessors were idle.
    """
    use = memory_use(memory, facts)
    if use is None or use.reserved_share >= room_share:
        return None
    loading = mean_step.per_step(sum(row.starved_ns for row in starving_phases if row.phase == "dataloader"))
    starved, unfilled = max(0.0, mean_step.starved_ns - loading) / 2, _unfilled_ns(mean_step, devices) / 2
    if mean_step.share(2 * (starved + unfilled)) < LEAST_IDLE_SHARE:
        return None
    held = max(use.held.peak_bytes, use.held.reserved_peak_bytes or 0)
    return Advice(
        title="A larger batch fits in memory",
        because=f"At most {units.size(held)} of {units.size(use.memory_bytes)} of memory was reserved "
        f"({units.share(use.reserved_share)}), and the GPU waits for the host for "
        f"{units.share(mean_step.share(mean_step.starved_ns))} of the step. With twice the batch a sample "
        f"takes up to {units.share(mean_step.share(starved + unfilled))} less time; a step gets no shorter.",
        saving=Saving(),
        certainty="possible",
        fix=_FIX,
        check="stepscope show throughput: more samples per second.",
        evidence={
            "reserved_peak_bytes": held,
            "peak_bytes": use.held.peak_bytes,
            "memory_bytes": use.memory_bytes,
            "reserved_share": use.reserved_share,
            "starved_ns": round(mean_step.starved_ns),
            "sample_gain_share": mean_step.share(starved + unfilled),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE)}),
    )


def _unfilled_ns(mean_step: MeanStep, devices: Table[Device]) -> float:
    """The part of the GPU's busy time in which multiprocessors were idle, in a step."""
    rows = [row for row in devices if row.device == mean_step.device]
    row = next((one for one in rows if one.window == "steps"), rows[0] if rows else None)
    if row is None or row.sm_efficiency_share is None or not row.busy_ns:
        return 0.0
    filled = min(1.0, row.sm_efficiency_share * row.window_ns / row.busy_ns)
    return mean_step.busy_ns * (1 - filled)
