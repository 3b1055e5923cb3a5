"""The device spends much of its time between short kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope import units
from stepscope.analyses.idle_gaps import IdleGap, SpentIn
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import part_in_steps
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["short_kernels"]

BETWEEN = (SpentIn.DEVICE_SCHEDULING, SpentIn.GRAPH_LATENCY)
"""What idle time is called that lies between two kernels which were both launched in time."""


@rule(category=Category.DEVICE)
def short_kernels(
    mean_step: MeanStep,
    idle_gaps: Table[IdleGap],
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    *,
    short_ns: int = 10_000,
    least_share: float = 0.05,
) -> Advice | None:
    """Kernels are so short that the device spends much of the step between them, though launched in time.

    Gain: a kernel that is fused into another saves the pause before it. At the most all pauses go, at the
    least none, for the profile does not tell which kernels could be one.
    """
    between = [row for row in idle_gaps if row.device == mean_step.device and row.spent_in in BETWEEN]
    between_ns = mean_step.per_step(sum(row.idle_ns for row in between))
    pauses = mean_step.per_step(sum(row.gaps for row in between))
    short = _short(kernels, short_ns, part_in_steps(kernels, kernel_families), mean_step)
    if mean_step.share(between_ns) < least_share or mean_step.starved_ns > between_ns + mean_step.busy_ns:
        return None
    if short.calls < short.every / 2:
        return None
    because = (
        f"{units.tally(short.calls)} of {units.tally(short.every)} kernels a step are shorter than "
        f"{units.duration(short_ns)}, and take {units.duration(short.time_ns)} together; the device "
        f"pauses {units.tally(pauses)} times between two, for {units.duration(between_ns)} in all."
    )
    return _advice(because, short, pauses, between_ns, mean_step)


def _advice(because: str, short: _Short, pauses: float, between_ns: float, mean_step: MeanStep) -> Advice:
    return Advice(
        title="Kernels are so short that pauses between them count",
        because=because,
        saving=Saving(waited_ns=(0.0, between_ns)),
        certainty="possible",
        fix="model = torch.compile(model)    # fewer, longer kernels, inside a CUDA graph, too\n"
        "loader = DataLoader(dataset, batch_size=2 * batch_size)    # or more work for each of them",
        check="stepscope show idle_gaps: less device scheduling and graph latency.",
        evidence={
            "short_kernels_per_step": short.calls,
            "kernels_per_step": short.every,
            "short_kernels_ns": short.time_ns,
            "pauses_per_step": pauses,
            "between_ns": between_ns,
            "between_share": mean_step.share(between_ns),
        },
        claims=frozenset({Claim(Time.WAITED, Part.KERNELS)}),
    )


@dataclass(frozen=True, slots=True)
class _Short:
    """Kernels under a length, in a mean step, and all of them."""

    calls: float
    time_ns: float
    every: float


def _short(kernels: Iterable[Kernel], short_ns: int, inside: float, mean_step: MeanStep) -> _Short:
    rows = [row for row in kernels if row.mean_ns < short_ns]
    return _Short(
        calls=mean_step.per_step(sum(row.calls for row in rows) * inside),
        time_ns=mean_step.per_step(sum(row.exclusive_ns for row in rows) * inside),
        every=mean_step.per_step(sum(row.calls for row in kernels) * inside),
    )
