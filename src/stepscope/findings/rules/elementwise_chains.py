"""Elementwise operators run one by one, each through memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part
from stepscope.findings._op_costs import OpCost, cost_of, part_in_steps, places_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
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
    longest: float
    """The same if all kernels of an operator, or of a gradient, that could not are one."""

    @property
    def parts(self) -> Bounds:
        """How much of them one kernel for each chain saves."""
        return 1 - 1 / self.length, 1 - 1 / self.longest


@rule(category=Category.DEVICE)
def elementwise_chains(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Elementwise operators run one by one, and each reads and writes memory that the next reads again.

    Gain: n kernels in a row become one, which reads what the first read and writes what the last wrote. So
    1 - 1/n of their time goes. At the least n is the kernels for each kernel of a product, convolution or
    collective; at the most for each operator of that kind, for a product and its gradients are several. Of
    that time 3/4 goes at the least, since the one kernel reads more inputs; half where there is a backward,
    for which results in between must be written. The host launches one for n as well: as much of what it
    spends in these operators and their gradients goes, 3/4 at the least, for to call what is compiled takes
    time. Whichever is slower of what is left of the host and of the device sets the pace.
    """
    fixed = cost_of((op for op in step_ops if _stays(op)), mean_step)
    chains = _chains(mean_step, kernels, kernel_families, fixed, _ends(step_ops))
    if chains.time_ns < max(least_share * mean_step.busy_ns, chains.fused_ns) or chains.length < LEAST_CHAIN:
        return None
    saving = _saving(chains, mean_step, step_ops)
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    ops = [op for op in step_ops if op.within is None and family_of(None, op.name) == "elementwise"]
    return _advice(chains, saving, mean_step, ops)


def _saving(chains: _Chains, mean_step: MeanStep, step_ops: Table[StepOp]) -> Saving:
    low, high = chains.parts
    time_ns = min(mean_step.busy_ns, chains.time_ns)
    trains = any(op.phase == "backward" for op in step_ops)
    host = host_part((op for op in step_ops if _in_chain(op)), step_ops)
    return fewer_calls(
        mean_step,
        (0.75 * low * host, high * host),
        (time_ns * low * (0.5 if trains else 0.75), time_ns * high),
    )


def _in_chain(op: StepOp) -> bool:
    """Whether the program called it, or autograd for its gradient, and its kernels are part of chains.

    A norm is one operator already.
    """
    if op.within is not None or _stays(op) or op.device_ns < LEAST_KERNEL_NS * max(1, op.launches):
        return False
    return family_of(None, called_as(op)) in ("elementwise", "reduction")


def _ends(step_ops: Table[StepOp]) -> float:
    """Operators of a step that end a chain, and gradients that do."""
    return sum(
        op.per_step
        for op in step_ops
        if op.within is None and op.launches and family_of(None, called_as(op)) in ANCHORS
    )


def _chains(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    fixed: OpCost,
    ends: float,
) -> _Chains:
    inside = part_in_steps(kernels, kernel_families)
    joining = [row for row in kernels if row.family in JOINING and row.mean_ns >= LEAST_KERNEL_NS]
    eager = [row for row in joining if row.family == "elementwise" and not _FUSED.match(row.name or "")]
    fused = [row for row in joining if _FUSED.match(row.name or "")]
    anchors = _calls(row for row in kernels if row.family in ANCHORS) * inside
    members = max(0.0, mean_step.per_step(_calls(joining) * inside) - fixed.launches)
    each = mean_step.per_step(anchors)
    return _Chains(
        time_ns=max(
            0.0, mean_step.per_step(sum(row.exclusive_ns for row in eager) * inside) - fixed.device_ns
        ),
        calls=max(0.0, mean_step.per_step(_calls(eager) * inside) - fixed.launches),
        fused_ns=mean_step.per_step(sum(row.exclusive_ns for row in fused) * inside),
        # Each step ends a chain, too.
        length=members / (each + 1),
        longest=members / (min(each, ends or each) + 1),
    )


def _calls(rows: Iterable[Kernel]) -> int:
    return sum(row.calls for row in rows)


def _stays(op: StepOp) -> bool:
    """Adding to a gradient, and the optimizer: other advice is about these."""
    if op.phase == "optimizer":
        return op.within is None and family_of(None, op.name) == "elementwise"
    return op.within == "torch::autograd::AccumulateGrad" and op.name == "aten::add_"


def _advice(chains: _Chains, saving: Saving, mean_step: MeanStep, ops: list[StepOp]) -> Advice:
    time_ns = chains.time_ns
    mean_ns = time_ns / chains.calls if chains.calls else 0.0
    return Advice(
        title="Elementwise operators run one by one",
        because=f"{units.tally(chains.calls)} elementwise kernels a step, {units.duration(mean_ns)} each, "
        f"take {units.duration(time_ns)}, {units.share(time_ns / mean_step.busy_ns)} of the device's work; "
        f"{units.tally(chains.length)} kernels that could be one lie between two that could not.",
        saving=saving,
        certainty="likely",
        fix="model = torch.compile(model)    # or @torch.compile on the function that holds the chain",
        check="stepscope show kernel_families: elementwise takes less; its kernels are called triton_….",
        evidence={
            "elementwise_ns": time_ns,
            "elementwise_share": time_ns / mean_step.busy_ns,
            "kernels_per_step": chains.calls,
            "kernel_mean_ns": mean_ns,
            "chain_length": chains.length,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.STARVED, Part.ELEMENTWISE)}),
        locations=places_of(ops),
    )
