"""Elementwise kernels in a row that a compiler would make one of, and what that saves."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.analyses.attention import Attention
from stepscope.analyses.kernel_chains import ANCHORS, FUSED, JOINS, LEAST_KERNEL_NS, UNFUSED, KernelChain
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Bounds, Saving
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part
from stepscope.findings._op_costs import cost_of, part_in_steps
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["Chains", "chains_of", "fusible", "saved_by_fusing", "saving_of"]

_SAVED = 0.4
"""Of what compiling saves at most, the part that goes at least. Of about forty programs on an H200 whose GPU
sets the pace most saved 0.5 to 1.0 of it, the others 0.37 and more, and two nothing: results that are needed
later are written anyway, and norms over a batch or a picture read their input twice."""

_DRAWS = "aten::exponential_"
"""What torch.multinomial makes for each candidate; no compiler fuses it."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Elementwise kernels that no compiler made, in a mean step."""

    time_ns: float
    calls: float
    fused_ns: float
    """The time of those that a compiler made."""
    length: float
    """How many kernels in a row could be one: on average between two kernels of `ANCHORS`."""
    longest: float
    """The same if all kernels of one such operator, or of its gradient, count as one."""
    stays_ns: float
    """The time of those that add up gradients or belong to the optimizer."""
    beside_unfused: bool
    """Whether some of the work is such as a compiler leaves as it is; it may leave what is beside it, too."""

    @property
    def mean_ns(self) -> float:
        """What one of them takes."""
        return self.time_ns / self.calls if self.calls else 0.0

    @property
    def parts(self) -> Bounds:
        """The part of them that one kernel for each chain saves."""
        return 1 - 1 / self.length, 1 - 1 / self.longest


def chains_of(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
) -> Chains:
    """The elementwise kernels of a mean step, without those that add up gradients and the optimizer's."""
    fixed = cost_of((op for op in step_ops if _stays(op)), mean_step)
    inside = part_in_steps(kernels, kernel_families)
    joining = [
        row
        for row in kernels
        if row.family in JOINS and row.mean_ns >= LEAST_KERNEL_NS and not UNFUSED.search(row.name or "")
    ]
    eager = [row for row in joining if row.family == "elementwise" and not FUSED.match(row.name or "")]
    fused = [row for row in joining if FUSED.match(row.name or "")]
    anchors = _calls(row for row in kernels if row.family in ANCHORS) * inside
    members = max(0.0, mean_step.per_step(_calls(joining) * inside) - fixed.launches)
    each = mean_step.per_step(anchors)
    return Chains(
        time_ns=max(
            0.0, mean_step.per_step(sum(row.exclusive_ns for row in eager) * inside) - fixed.device_ns
        ),
        calls=max(0.0, mean_step.per_step(_calls(eager) * inside) - fixed.launches),
        fused_ns=mean_step.per_step(sum(row.exclusive_ns for row in fused) * inside),
        # Each step ends a chain, too.
        length=members / (each + 1),
        longest=members / (min(each, _ends(step_ops) or each) + 1),
        stays_ns=fixed.device_ns,
        beside_unfused=any(UNFUSED.search(row.name or "") for row in kernels),
    )


def saving_of(
    chains: Chains, rows: Iterable[KernelChain], mean_step: MeanStep, step_ops: Table[StepOp]
) -> Saving:
    """What is saved if these chains are fused, on the host and on the GPU."""
    low, high = chains.parts
    host = host_part((op for op in step_ops if _in_chain(op)), step_ops)
    least = 0.0 if chains.beside_unfused else 0.75 * low * host
    return fewer_calls(mean_step, (least, high * host), saved_by_fusing(mean_step, rows, chains))


def saved_by_fusing(mean_step: MeanStep, rows: Iterable[KernelChain], chains: Chains | None = None) -> Bounds:
    """Time of the GPU in a mean step that goes if a compiler makes one kernel of each of these chains.

    At most, the time of the shortest kernel is left of each, without copies and casts in it and beside it.
    What the optimizer and sums of gradients take (`chains`) is among them, and stays.
    """
    whole = sum(row.device_ns + row.copies_ns + row.beside_ns - row.shortest_ns for row in rows)
    stays_ns = chains.stays_ns if chains else 0.0
    most = min(mean_step.busy_ns, max(0.0, mean_step.per_step(whole) - stays_ns))
    return (0.0 if chains and chains.beside_unfused else _SAVED * most), most


def fusible(kernel_chains: Iterable[KernelChain], attention: Table[Attention]) -> list[KernelChain]:
    """The chains that a compiler fuses and that no other rule is about."""
    return [row for row in kernel_chains if not _has_own_rule(row, attention)]


def _has_own_rule(row: KernelChain, attention: Iterable[Attention]) -> bool:
    """Whether it is part of a loss, of attention that is written out, or of a draw, which stays a call."""
    if _DRAWS in row.ops:
        return True
    if "aten::_softmax" in row.ops:
        return any(one.backend in ("math", "hand-written") for one in attention)
    return "softmax" in row.ops


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


def _calls(rows: Iterable[Kernel]) -> int:
    return sum(row.calls for row in rows)


def _stays(op: StepOp) -> bool:
    """Whether it adds to a gradient or belongs to the optimizer: other rules report these."""
    if op.phase == "optimizer":
        return op.within is None and family_of(None, op.name) == "elementwise"
    return op.within == "torch::autograd::AccumulateGrad" and op.name == "aten::add_"
