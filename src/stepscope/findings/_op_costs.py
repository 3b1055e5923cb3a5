"""What groups of operators cost a mean step; shared by rules that advise to remove some of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.findings import Bounds, Location, locations_of
from stepscope.findings._phrases import often
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.kernel_families import KernelFamily
    from stepscope.analyses.kernels import Kernel
    from stepscope.analyses.starving_phases import StarvingPhase
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["OpCost", "cost_of", "part_in_steps", "part_of", "places_of", "python_beside", "waits_of"]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Some operators with all they called, in a mean step."""

    calls: float
    starved_ns: float
    """Time in them while a GPU was idle and waited for a launch."""
    device_ns: float
    launches: float

    @property
    def mean_device_ns(self) -> float:
        """GPU time of one call."""
        return self.device_ns / self.calls if self.calls else 0.0


def cost_of(ops: Iterable[StepOp], mean_step: MeanStep) -> OpCost:
    """The sum of rows; none of them may be inside another."""
    rows = list(ops)
    return OpCost(
        calls=mean_step.per_step(sum(row.calls for row in rows)),
        starved_ns=mean_step.per_step(sum(row.starved_ns for row in rows)),
        device_ns=mean_step.per_step(sum(row.device_ns for row in rows)),
        launches=mean_step.per_step(sum(row.launches for row in rows)),
    )


def part_of(op: StepOp, part: float) -> StepOp:
    """A part of its calls, with the same part of its times."""
    return replace(
        op,
        calls=round(op.calls * part),
        per_step=op.per_step * part,
        host_ns=round(op.host_ns * part),
        starved_ns=round(op.starved_ns * part),
        device_ns=round(op.device_ns * part),
        launches=round(op.launches * part),
    )


def waits_of(
    starved_ns: float, launches: float, mean_step: MeanStep, starving_phases: Iterable[StarvingPhase]
) -> Bounds:
    """How long the GPU waits in a step, together with the latency of launches.

    The latency is divided in proportion to waiting time, or to launches: one is the lower bound, one the
    upper.
    """
    every = mean_step.per_step(sum(phase.launches for phase in starving_phases))
    latency_ns = mean_step.latency_ns * launches / every if every else 0.0
    by_launch = min(mean_step.starved_ns, starved_ns + latency_ns)
    low, high = sorted((mean_step.with_latency(starved_ns), by_launch))
    return low, high


def python_beside(
    cost: OpCost, mean_step: MeanStep, starving_phases: Iterable[StarvingPhase], step_ops: Iterable[StepOp]
) -> float:
    """How long the GPU waits for Python around these calls: as for the mean call, at most as for the calls.

    Phase `other` is what runs between operators; autograd and the optimizer have their own phases.
    """
    between_ns = mean_step.per_step(
        sum(phase.starved_ns for phase in starving_phases if phase.phase == "other")
    )
    calls = sum(op.per_step for op in step_ops if op.within is None and op.phase in ("forward", "other"))
    return min(cost.starved_ns, between_ns * cost.calls / calls) if calls else 0.0


def places_of(ops: Iterable[StepOp], what: str = "call") -> tuple[Location, ...]:
    """Where operators were called from, most expensive first, with how often."""
    found: dict[str, tuple[float, float]] = {}
    names: dict[str, list[str | None]] = defaultdict(list)
    for row in ops:
        if row.user_frame:
            spent, calls = found.get(row.user_frame, (0.0, 0.0))
            found[row.user_frame] = spent + row.starved_ns + row.device_ns, calls + row.per_step
            names[row.user_frame].append(row.name)
    order = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return locations_of((frame, often(calls, what), names[frame]) for frame, (_, calls) in order)


def part_in_steps(kernels: Table[Kernel], kernel_families: Table[KernelFamily]) -> float:
    """The part of the kernels' time that is inside steps: the table of kernels covers the whole trace.

    Copies are left out, because they are not in the table of kernels.
    """
    whole = sum(kernel.total_ns for kernel in kernels if kernel.family != "copy")
    inside = sum(family.total_ns for family in kernel_families if family.family != "copy")
    return min(1.0, inside / whole) if whole else 1.0
