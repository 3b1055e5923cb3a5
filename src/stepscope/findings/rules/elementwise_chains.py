"""Elementwise operators run as separate kernels, each through memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.product_casts import ProductCasts
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part
from stepscope.findings._op_costs import OpCost, cost_of, part_in_steps, places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["elementwise_chains"]

# Kernels of Inductor: these are fused already.
_FUSED = re.compile(r"^triton_")
ANCHORS = ("matmul", "attention", "convolution", "communication")
"""Families of kernels that end a chain."""
JOINING = ("elementwise", "normalisation", "reduction")
"""Families that a compiler fuses into one kernel."""
LEAST_KERNEL_NS = 5_000
"""A shorter kernel takes the same time, however little it moves."""
LEAST_CHAIN = 2.0
LEAST_GAIN = 0.02


@dataclass(frozen=True, slots=True)
class _Chains:
    """Elementwise kernels that no compiler made, in a mean step."""

    time_ns: float
    calls: float
    fused_ns: float
    """The time of those that a compiler made."""
    length: float
    """How many kernels in a row could be one: on average between two kernels of `ANCHORS`."""
    longest: float
    """The same if all kernels of one such operator, or of its gradient, count as one."""

    @property
    def parts(self) -> Bounds:
        """The part of them that one kernel for each chain saves."""
        return 1 - 1 / self.length, 1 - 1 / self.longest


@rule(category=Category.DEVICE)
def elementwise_chains(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    product_casts: Table[ProductCasts],
    facts: Facts,
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Elementwise operators run one by one, and each reads back what the one before wrote to memory.

    Gain: n kernels in a row become one, so 1 - 1/n of their time goes. The host launches one instead of n,
    so the same part of its time in these operators and their gradients goes. The slower of what is left of
    host and GPU sets the pace.

    - at most: n is the number of such kernels for each matrix product, attention, convolution or collective.
    - at least: n is their number for each kernel of those, because a product and its gradients are several
      kernels. 3/4 of the time goes, because the fused kernel reads more inputs; 1/2 if there is a backward
      pass, which needs results in between. 3/4 of the host time goes, because calling compiled code costs
      time, too.
    """
    if facts.kind == "xplane":  # XLA fuses operators by itself
        return None
    fixed = _fixed(step_ops, product_casts, mean_step)
    chains = _chains(mean_step, kernels, kernel_families, fixed, _ends(step_ops))
    if chains.time_ns < max(least_share * mean_step.busy_ns, chains.fused_ns) or chains.length < LEAST_CHAIN:
        return None
    saving = _saving(chains, mean_step, step_ops)
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    ops = [op for op in step_ops if op.within is None and family_of(None, op.name) == "elementwise"]
    return _advice(chains, saving, mean_step, ops)


def _fixed(step_ops: Table[StepOp], product_casts: Table[ProductCasts], mean_step: MeanStep) -> OpCost:
    """What no chain has: work that other rules report, and casts of weights, which no kernel wrote before."""
    stays = cost_of((op for op in step_ops if _stays(op)), mean_step)
    weights = mean_step.per_step(sum(row.of_weights for row in product_casts))
    weights_ns = mean_step.per_step(sum(row.of_weights_ns for row in product_casts))
    return replace(
        stays,
        calls=stays.calls + weights,
        launches=stays.launches + weights,
        device_ns=stays.device_ns + weights_ns,
    )


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
    """Whether the program called it, or autograd for its gradient, and its kernels belong to chains.

    A norm is a single operator already.
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
    """Whether it adds to a gradient or belongs to the optimizer: other rules report these."""
    if op.phase == "optimizer":
        return op.within is None and family_of(None, op.name) == "elementwise"
    return op.within == "torch::autograd::AccumulateGrad" and op.name == "aten::add_"


def _advice(chains: _Chains, saving: Saving, mean_step: MeanStep, ops: list[StepOp]) -> Advice:
    time_ns = chains.time_ns
    mean_ns = time_ns / chains.calls if chains.calls else 0.0
    return Advice(
        title="Elementwise operators run as separate kernels",
        because=f"{often(chains.calls, 'elementwise kernel')}, {units.duration(mean_ns)} each, take "
        f"{units.duration(time_ns)} ({units.share(time_ns / mean_step.work_ns)} of the GPU's work). On "
        f"average {units.tally(chains.length)} kernels in a row could be fused into one.",
        saving=saving,
        certainty="likely",
        fix=fix_of(
            line(
                Change.COMPILE,
                "model = torch.compile(model)    # or @torch.compile on the function with these operators",
            )
        ),
        check="stepscope show kernel_families: elementwise takes less time; its kernels are named triton_….",
        evidence={
            "elementwise_ns": time_ns,
            "elementwise_share": time_ns / mean_step.work_ns,
            "kernels_per_step": chains.calls,
            "kernel_mean_ns": mean_ns,
            "chain_length": chains.length,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.STARVED, Part.ELEMENTWISE)}),
        locations=places_of(ops),
    )
