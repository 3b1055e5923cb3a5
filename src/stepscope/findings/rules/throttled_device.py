"""The GPU runs below its clock: too hot, a lowered power limit, clocks that somebody set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stepscope import units
from stepscope.analyses.gpu_health import GpuHealth
from stepscope.analyses.rooflines import Roofline
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._gpu_state import gpu_of
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["throttled_device"]


class _Cause(NamedTuple):
    """What holds the clock back."""

    title: str
    says: str
    fix: str
    share: float


@rule(category=Category.DEVICE)
def throttled_device(
    mean_step: MeanStep,
    gpu_health: Table[GpuHealth],
    rooflines_by_family: Table[Roofline],
    *,
    throttled_share: float = 0.20,
    least_share: float = 0.02,
) -> Advice | None:
    """The GPU's clock is held back by heat, a lowered power limit, the board, or clocks that were set.

    Gain: work that computes takes time in inverse proportion to the clock; work that waits for memory does
    not.

    - at most: all of the GPU's work in inverse proportion, from its mean clock while busy to the highest it
      has.
    - at least: the same for the part of the work that computing limits, and only up to the clock that the GPU
      reached in this run while nothing held it back. Nothing if there was no such time.

    A GPU that draws the power it is made for and lowers its clock for that is healthy: no finding.
    """
    row = gpu_of(gpu_health, mean_step.device)
    cause = _cause(row, throttled_share) if row else None
    if row is None or cause is None or not row.sm_clock_mhz or not row.top_sm_clock_mhz:
        return None
    lost = max(0.0, 1 - row.sm_clock_mhz / row.top_sm_clock_mhz)
    most = mean_step.busy_ns * lost
    if mean_step.share(most) < least_share:
        return None
    free = row.free_sm_clock_mhz or 0.0
    computing = _computing_share(rooflines_by_family)
    regained = max(0.0, 1 - row.sm_clock_mhz / free) if free else 0.0
    return Advice(
        title=cause.title,
        because=f"{cause.says} in {units.share(cause.share)} of the samples. Its clock is "
        f"{row.sm_clock_mhz:.0f} MHz on average while it is busy, {units.share(lost)} below the highest of "
        f"{row.top_sm_clock_mhz} MHz.",
        saving=Saving(device_ns=(min(most, mean_step.busy_ns * computing * regained), most)),
        certainty="likely",
        fix=fix_of(line(Change.MACHINE, cause.fix)),
        check="stepscope show gpu_health: throttled_share is near 0, and sm_clock_mhz near top_sm_clock_mhz.",
        evidence={
            "sm_clock_mhz": row.sm_clock_mhz,
            "top_sm_clock_mhz": row.top_sm_clock_mhz,
            "free_sm_clock_mhz": row.free_sm_clock_mhz,
            "throttled_share": row.throttled_share,
            "temperature_c": row.temperature_c,
            "power_w": row.power_w,
            "power_limit_w": row.power_limit_w,
            "default_power_limit_w": row.default_power_limit_w,
            "samples": row.busy_samples,
        },
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _cause(row: GpuHealth, least: float) -> _Cause | None:
    """What holds the clock back most often, of what somebody can change."""
    limit, default = row.power_limit_w, row.default_power_limit_w
    found = []
    if row.thermal_share:
        says = "The GPU is too hot"
        if row.temperature_c:
            says += f" (up to {row.temperature_c} °C) and lowers its clock"
        fix = "nvidia-smi -q -d TEMPERATURE,PERFORMANCE    # then: fans, air flow, room; or another node"
        found.append(_Cause("The GPU is too hot and slows down", says, fix, row.thermal_share))
    if row.hardware_share:
        fix = "nvidia-smi -q -d PERFORMANCE    # power brake: check the power supply and its cables"
        says = "The board slows the GPU down, for its temperature or its power supply,"
        found.append(_Cause("The board slows the GPU down", says, fix, row.hardware_share))
    if row.power_share and limit and default and limit < default:
        lowered = f"{limit:.0f} W, lowered from {default:.0f} W,"
        says = f"The GPU's power limit of {lowered} holds its clock back"
        fix = f"sudo nvidia-smi -i {row.device} -pl {default:.0f}    # if the room can cool it"
        found.append(_Cause("The GPU's power limit was lowered", says, fix, row.power_share))
    if row.set_clock_share:
        says = "Clocks that somebody has set hold the GPU back"
        fix = f"sudo nvidia-smi -i {row.device} -rac; sudo nvidia-smi -i {row.device} -rgc"
        found.append(_Cause("The GPU's clock was set to a lower one", says, fix, row.set_clock_share))
    worst = max(found, key=lambda one: one.share, default=None)
    return worst if worst and worst.share >= least else None


def _computing_share(rows: Iterable[Roofline]) -> float:
    """The part of the GPU's work that computing limits."""
    known = list(rows)
    total = sum(row.work_ns for row in known)
    return sum(row.work_ns for row in known if row.bound == "compute") / total if total else 0.0
