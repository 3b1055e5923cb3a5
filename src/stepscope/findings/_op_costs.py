"""What groups of operators cost a mean step: shared by rules that want some of them gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.findings import Bounds, Location, locations_of

if TYPE_CHECKING:
    from stepscope.analyses.kernel_families import KernelFamily
    from stepscope.analyses.kernels import Kernel
    from stepscope.analyses.starving_phases import StarvingPhase
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["OpCost", "cost_of", "part_in_steps", "places_of", "python_beside", "waits_of"]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Some operators with all they called, in a mean step."""

    calls: float
    starved_ns: float
    """Time in them while a device was idle and waited for a launch."""
    device_ns: float
    launches: float

    @property
    def mean_device_ns(self) -> float:
        """Device time of one call."""
        return self.device_ns / self.calls if self.calls else 0.0


def cost_of(ops: Iterable[StepOp], mean_step: MeanStep) -> OpCost:
    """The sum of rows that do not lie inside one another."""
    rows = list(ops)
    return OpCost(
        calls=mean_step.per_step(sum(row.calls for row in rows)),
        starved_ns=mean_step.per_step(sum(row.starved_ns for row in rows)),
        device_ns=mean_step.per_step(sum(row.device_ns for row in rows)),
        launches=mean_step.per_step(sum(row.launches for row in rows)),
    )


def waits_of(
    starved_ns: float, launches: float, mean_step: MeanStep, starving_phases: Iterable[StarvingPhase]
) -> Bounds:
    """Late time of a step together with the latency of launches.

    The latency is shared out in proportion to late time, or to launches: one is the least, one the most.
    """
    every = mean_step.per_step(sum(phase.launches for phase in starving_phases))
    latency_ns = mean_step.latency_ns * launches / every if every else 0.0
    by_launch = min(mean_step.starved_ns, starved_ns + latency_ns)
    low, high = sorted((mean_step.with_latency(starved_ns), by_launch))
    return low, high


def python_beside(
    cost: OpCost, mean_step: MeanStep, starving_phases: Iterable[StarvingPhase], step_ops: Iterable[StepOp]
) -> float:
    """Late time in the Python around these calls: that of the mean call, and no more than their own.

    Phase `other` is what runs between operators; autograd and the optimizer have their own.
    """
    between_ns = mean_step.per_step(
        sum(phase.starved_ns for phase in starving_phases if phase.phase == "other")
    )
    calls = sum(op.per_step for op in step_ops if op.within is None and op.phase in ("forward", "other"))
    return min(cost.starved_ns, between_ns * cost.calls / calls) if calls else 0.0


def places_of(ops: Iterable[StepOp], what: str = "calls") -> tuple[Location, ...]:
    """Where operators were called from, most expensive first, with how often."""
    found: dict[str, tuple[float, float]] = {}
    for row in ops:
        if row.user_frame:
            spent, calls = found.get(row.user_frame, (0.0, 0.0))
            found[row.user_frame] = spent + row.starved_ns + row.device_ns, calls + row.per_step
    order = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return locations_of((frame, f"{units.tally(calls)} {what} a step") for frame, (_, calls) in order)


def part_in_steps(kernels: Table[Kernel], kernel_families: Table[KernelFamily]) -> float:
    """The part of the kernels' time that lies inside steps: the table of kernels knows the whole trace only.

    Copies are left out, for theirs is not in the table of kernels.
    """
    whole = sum(kernel.total_ns for kernel in kernels if kernel.family != "copy")
    inside = sum(family.total_ns for family in kernel_families if family.family != "copy")
    return min(1.0, inside / whole) if whole else 1.0
