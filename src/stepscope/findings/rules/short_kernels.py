"""The GPU spends much of its time between short kernels."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.idle_gaps import IdleGap, SpentIn
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import part_in_steps
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["short_kernels"]

BETWEEN = (SpentIn.DEVICE_SCHEDULING, SpentIn.GRAPH_LATENCY)
"""Causes of idle time between two kernels that were both launched in time."""


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
    """Kernels are launched in time, but are so short that the gaps between them take much of the step.

    Gain: a kernel that is fused into another saves the gap before it.

    - at most: all of these gaps.
    - at least: nothing, because the profile does not tell which kernels can be fused.
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
        f"{units.tally(short.calls)} of {often(short.every, 'kernel')} are shorter than "
        f"{units.duration(short_ns)} and take {units.duration(short.time_ns)} in total. The GPU pauses "
        f"between kernels {often(pauses, 'time')}, for {units.duration(between_ns)} in total."
    )
    return _advice(because, short, pauses, between_ns, mean_step)


def _advice(because: str, short: _Short, pauses: float, between_ns: float, mean_step: MeanStep) -> Advice:
    return Advice(
        title="Gaps between short kernels add up",
        because=because,
        saving=Saving(waited_ns=(0.0, between_ns)),
        certainty="possible",
        fix=fix_of(
            line(
                Change.COMPILE,
                "model = torch.compile(model)    # fewer, longer kernels; also inside a CUDA graph",
            ),
            line(
                Change.BATCH,
                "batch_size *= 2    # or more work for each kernel",
                why="or more work for each kernel",
            ),
        ),
        check="stepscope show idle_gaps: less 'device scheduling' and 'graph latency'.",
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
    """Kernels below a length in a mean step, and all kernels."""

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
