"""Operators that have to wait for the device: masks, nonzero, copies of pageable memory."""

from __future__ import annotations

import re

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._waits import (
    Reason,
    Wait,
    WaitCause,
    held_up,
    launch_costs,
    lead_of,
    lead_won,
    locations_of_waits,
    times,
    waits_of,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["implicit_syncs"]

_MINE = (WaitCause.OPERATOR, WaitCause.UPLOAD, WaitCause.DOWNLOAD)
"""Others are for other rules, or nothing that a program can change."""
# Operators whose result has as many rows as the values of their inputs say: the host must count them first.
_FIXES = {
    "aten::nonzero": "torch.where(mask, x, 0)    # or (x * mask).sum() / mask.sum(): not x[mask], nonzero()",
    "aten::masked_select": "torch.where(mask, x, 0)    # the size of masked_select must be counted first",
    "aten::repeat_interleave": "x.repeat_interleave(repeats, output_size=total)    # if the host knows it",
    "aten::one_hot": "functional.one_hot(x, num_classes=classes)    # else the largest class is looked up",
    "aten::bincount": "torch.zeros(bins, device=x.device).scatter_add_(0, x, ones)    # instead of bincount",
    "aten::equal": "(a == b).all()    # stays on the device; torch.equal and allclose read the answer",
    "aten::allclose": "(a == b).all()    # stays on the device; torch.equal and allclose read the answer",
    "aten::_linalg_check_errors": "torch.linalg.cholesky_ex(a), inv_ex, solve_ex    # do not look for errors",
    WaitCause.UPLOAD.value: (
        'torch.full((), x, device="cuda")    # instead of torch.tensor(x).cuda(); or make it once\n'
        'x.pin_memory().to("cuda", non_blocking=True)    # for what is in host memory anyway'
    ),
    WaitCause.DOWNLOAD.value: (
        "hits += (scores.argmax(-1) == labels).sum()    # on the device; fetch the sum at the end\n"
        'y = x.to("cpu", non_blocking=True)    # into pinned memory; wait once, when it is used'
    ),
}
_SIZED = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
# Operators that take rows by their numbers or put them back, and the nodes of autograd for them.
_PICKS = re.compile(
    r"^aten::(index|index_put_?|index_add_?|index_select|index_copy_?|masked_select|nonzero|_unique2|unique_dim)$"
    r"|^autograd::engine::evaluate_function: (Index|MaskedSelect)\w*Backward\d*$"
)
_INSTEAD = 12
"""Operators, forward and backward, that take the place of one part that was picked: products, sums."""
_PARTS = 4
"""From so many parts a step on, the program is taken to loop over parts that could be one."""
_UNIQUE = "torch.unique counts first: sort() and a mask of changes keep their size"
_COMPUTING = ("forward", "other")
"""Phases in which a program computes what it fetched: metrics, samples."""
_WHAT = {WaitCause.UPLOAD: "small copies to the GPU", WaitCause.DOWNLOAD: "copies to the host"}


@rule(category=Category.SYNC)
def implicit_syncs(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    idle_gaps: Table[IdleGap],
    kernels: Table[Kernel],
    iterations: Table[Iteration],
    copies_by_op: Table[Copy],
    copies_by_frame: Table[Copy],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Operators make the host wait for the device: masks, nonzero(), .cpu(), small tensors copied over.

    Gain: a host that does not wait is ahead of the device by the time that the waits took, and the step
    shrinks by that lead, as far as the device waits for the host anywhere in it. At the least the waits
    count, or what picking rows and putting them back takes beyond the operators that do the same with a mask;
    where something else waits, too, only as far as the device starved right behind. At the most the operators
    around the waits go; of what the host computed itself, where it fetched tensors, all but a launch for each
    operator, for the device can do it; and where the program asks for rows several times a step, every
    operator that runs as often, for it works on one part at a time, and all can be worked on at once. Large
    copies to the device are another rule's matter.
    """
    if mean_step.device is None:
        return None
    waits = waits_of(host_syncs, step_ops, copies_by_frame if facts.stacks else copies_by_op)
    mine = [wait for wait in waits if wait.cause in _MINE]
    if not mine:
        return None
    others = [wait for wait in waits if wait.cause not in _MINE]
    lead = lead_of(mean_step, _beside_ns(mean_step, mine, step_ops), kernels, step_ops, iterations)
    saving = lead_won(mean_step, idle_gaps, mine, others, lead)
    if mean_step.gain(saving).high_share < least_share:
        return None
    return _advice(mean_step, mine, saving)


def _beside_ns(mean_step: MeanStep, mine: list[Wait], step_ops: Table[StepOp]) -> Bounds:
    """Host time of a step that goes with the waits: picking rows; and what works on one part at a time."""
    waited = sum(wait.waited_ns for wait in mine)
    copies = [wait for wait in mine if wait.cause in _WHAT]
    causes = {wait.reason.op for wait in mine if wait.cause is WaitCause.OPERATOR}
    rows = [row for row in step_ops if row.within is None]
    cheapest, mean = launch_costs(step_ops)
    # What copies and other operators cost, beside the waits in them.
    around = sum(wait.waited_ns + wait.calls * cheapest for wait in copies)
    around += sum(row.host_ns for row in step_ops if row.name in causes)
    picked = [row for row in rows if _PICKS.search(row.name or "")] if causes & _SIZED else []
    parts = sum(row.calls for row in step_ops if row.name in _SIZED and row.phase != "backward")
    low = max(waited, sum(row.host_ns for row in picked) - parts * _INSTEAD * mean)
    looped = sum(row.calls for row in rows if row.name in _SIZED)
    around += _computed_ns(rows, mean) if any(wait.cause is WaitCause.DOWNLOAD for wait in mine) else 0.0
    by_part = [row for row in rows if row.calls >= looped] if looped >= _PARTS * mean_step.steps else picked
    high = max(low, around, sum(row.host_ns for row in by_part))
    return mean_step.per_step(low - waited), mean_step.per_step(high - waited)


def _computed_ns(rows: list[StepOp], launch_ns: float) -> float:
    """Host time of operators that the host ran itself, beyond what it takes to launch them."""
    own = [row for row in rows if not row.launches and row.phase in _COMPUTING]
    return sum(max(0.0, row.host_ns - row.calls * launch_ns) for row in own)


def _advice(mean_step: MeanStep, mine: list[Wait], saving: Saving) -> Advice:
    by_reason: dict[Reason, list[Wait]] = {}
    for wait in mine:
        by_reason.setdefault(wait.reason, []).append(wait)
    ranked = sorted(by_reason.items(), key=lambda one: (-_cost(one[1]), one[0].name))
    waited = mean_step.per_step(sum(wait.waited_ns for wait in mine))
    starved = mean_step.per_step(sum(wait.starved_ns for wait in mine))
    calls = mean_step.per_step(sum(wait.calls for wait in mine))
    causes = ", ".join(
        f"{_WHAT.get(reason.cause, reason.name)} "
        f"({times(mean_step.per_step(sum(wait.calls for wait in group)), 'wait')})"
        for reason, group in ranked[:3]
    )
    return Advice(
        title="Operators make the host wait for the device",
        because=f"In a step {causes}: {held_up(mean_step, waited, mine)}",
        saving=saving,
        certainty="certain",
        fix="\n".join(dict.fromkeys(_fix(reason.name) for reason, _ in ranked[:3])),
        check="stepscope show host_syncs: these operators are gone from the table.",
        evidence={
            "waits_per_step": calls,
            "waited_ns": round(waited),
            "starved_ns": round(starved),
            "starved_share": mean_step.share(starved),
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of_waits(mine, mean_step.steps, "wait"),
    )


def _cost(waits: list[Wait]) -> float:
    return sum(wait.waited_ns + wait.starved_ns for wait in waits)


def _fix(cause: str) -> str:
    if "unique" in cause:
        return _UNIQUE
    return _FIXES.get(cause, f"{cause} waits for the device: do it outside the loop, or every so many steps")
