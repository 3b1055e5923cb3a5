"""Most of the device's memory is free, and the host cannot keep the device busy."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.devices import Device
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._device_memory import memory_use
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["memory_room"]

LEAST_IDLE_SHARE = 0.10
"""Of the step. A device that is busy and full gains nothing from larger batches."""
_FIX = """\
DataLoader(..., batch_size=2 * batch_size)   # and the learning rate as your recipe says
# with gradient accumulation: half as many micro-steps, each twice as large, leave the result as it is"""


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
    """Less than half of the memory is used while the device waits or is half empty: a larger batch fits.

    Gain: none for a step. For a sample of it, if the batch is doubled: the host does for two samples what it
    did for one, so at the most half of the device's waiting goes for each sample, but for loading, which has
    twice as much to do; and kernels that filled a part of the device take the other part first, which is at
    the most half of their time in it. That is said, and not counted: a gain is that of a step.
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
        title="Memory is free for a larger batch",
        because=f"At most {units.size(held)} of {units.size(use.memory_bytes)} memory was reserved "
        f"({units.share(use.reserved_share)}), while the GPU waited for the host "
        f"{units.share(mean_step.share(mean_step.starved_ns))} of the step. Twice the batch takes up to "
        f"{units.share(mean_step.share(starved + unfilled))} less time for a sample; a step gets no shorter.",
        saving=Saving(),
        certainty="possible",
        fix=_FIX,
        check="stepscope show throughput: more samples a second.",
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
    """Busy time of a step, as far as multiprocessors had nothing to do in it."""
    rows = [row for row in devices if row.device == mean_step.device]
    row = next((one for one in rows if one.window == "steps"), rows[0] if rows else None)
    if row is None or row.sm_efficiency_share is None or not row.busy_ns:
        return 0.0
    filled = min(1.0, row.sm_efficiency_share * row.window_ns / row.busy_ns)
    return mean_step.busy_ns * (1 - filled)
