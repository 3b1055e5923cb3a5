"""Elementwise operators run one by one, each through memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope import units
from stepscope.analyses._families import family_of
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Saving, rule
from stepscope.findings._op_costs import OpCost, cost_of, part_in_steps, places_of
from stepscope.findings.pace import Pace
from stepscope.tables import Table

__all__ = ["elementwise_chains"]

# Inductor's own kernels: these are fused already.
_FUSED = re.compile(r"^triton_")
ANCHORS = ("matmul", "attention", "convolution", "communication")
"""Families of kernels that end a chain."""
JOINING = ("elementwise", "normalisation", "reduction")
"""Families that a compiler puts into one kernel."""
LEAST_KERNEL_NS = 5_000
"""A shorter kernel takes its time whatever it moves."""
LEAST_CHAIN = 2.0
LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class _Chains:
    """Elementwise kernels that were not made by a compiler, in a mean step."""

    time_ns: float
    calls: float
    fused_ns: float
    """Time of those that were."""
    length: float
    """Kernels that could be one: as many as lie between two that could not."""


@rule
def elementwise_chains(
    pace: Pace,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Elementwise operators run one by one, and each reads and writes memory that the next reads again.

    Gain: n kernels in a row become one, which reads what the first read and writes what the last wrote. So
    1 - 1/n of their time at the most, n being the kernels between two products, convolutions or collectives.
    At the least 3/4 of that, since the one kernel reads more inputs; and half where there is a backward,
    for which results in between must be written.
    """
    fixed = cost_of((op for op in step_ops if _stays(op)), pace)
    chains = _chains(pace, kernels, kernel_families, fixed)
    if chains.time_ns < max(least_share * pace.busy_ns, chains.fused_ns) or chains.length < LEAST_CHAIN:
        return None
    most = min(pace.busy_ns, chains.time_ns) * (1 - 1 / chains.length)
    trains = any(op.phase == "backward" for op in step_ops)
    saving = Saving(device_ns=(most * (0.5 if trains else 0.75), most))
    if pace.gain(saving).high_share < LEAST_GAIN:
        return None
    ops = [op for op in step_ops if op.within is None and family_of(None, op.name) == "elementwise"]
    return _advice(chains, saving, pace, ops)


def _chains(
    pace: Pace, kernels: Table[Kernel], kernel_families: Table[KernelFamily], fixed: OpCost
) -> _Chains:
    inside = part_in_steps(kernels, kernel_families)
    joining = [row for row in kernels if row.family in JOINING and row.mean_ns >= LEAST_KERNEL_NS]
    eager = [row for row in joining if row.family == "elementwise" and not _FUSED.match(row.name or "")]
    fused = [row for row in joining if _FUSED.match(row.name or "")]
    anchors = _calls(row for row in kernels if row.family in ANCHORS) * inside
    members = pace.per_step(_calls(joining) * inside) - fixed.launches
    return _Chains(
        time_ns=max(0.0, pace.per_step(sum(row.exclusive_ns for row in eager) * inside) - fixed.device_ns),
        calls=max(0.0, pace.per_step(_calls(eager) * inside) - fixed.launches),
        fused_ns=pace.per_step(sum(row.exclusive_ns for row in fused) * inside),
        # Each step ends a chain, too.
        length=max(0.0, members / (pace.per_step(anchors) + 1)),
    )


def _calls(rows: Iterable[Kernel]) -> int:
    return sum(row.calls for row in rows)


def _stays(op: StepOp) -> bool:
    """Adding to a gradient, and the optimizer: other advice is about these."""
    if op.phase == "optimizer":
        return op.within is None and family_of(None, op.name) == "elementwise"
    return op.within == "torch::autograd::AccumulateGrad" and op.name == "aten::add_"


def _advice(chains: _Chains, saving: Saving, pace: Pace, ops: list[StepOp]) -> Advice:
    time_ns = chains.time_ns
    mean_ns = time_ns / chains.calls if chains.calls else 0.0
    return Advice(
        title="Elementwise operators run one by one",
        because=f"{units.tally(chains.calls)} elementwise kernels a step, {units.duration(mean_ns)} each, "
        f"take {units.duration(time_ns)}, {units.share(time_ns / pace.busy_ns)} of the device's work; "
        f"{units.tally(chains.length)} kernels that could be one lie between two that could not.",
        saving=saving,
        certainty="likely",
        fix="model = torch.compile(model)    # or @torch.compile on the function that holds the chain",
        check="stepscope show kernel_families: elementwise takes less; its kernels are called triton_….",
        evidence={
            "elementwise_ns": time_ns,
            "elementwise_share": time_ns / pace.busy_ns,
            "kernels_per_step": chains.calls,
            "kernel_mean_ns": mean_ns,
            "chain_length": chains.length,
        },
        claims=frozenset({"device:elementwise"}),
        locations=places_of(ops),
    )
