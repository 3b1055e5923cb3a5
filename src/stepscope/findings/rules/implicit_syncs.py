"""Operators that have to wait for the GPU: masks, nonzero, copies of pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.loops import Loop
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._loops import NamedLoop, named_loops
from stepscope.findings._phrases import often
from stepscope.findings._waits import (
    Reason,
    Wait,
    WaitCause,
    held_up,
    launch_costs,
    lead_of,
    lead_won,
    locations_of_waits,
    waits_of,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["implicit_syncs"]

_MINE = (WaitCause.OPERATOR, WaitCause.UPLOAD, WaitCause.DOWNLOAD)
"""Others are for other rules, or nothing that a program can change."""
# The size of these operators' results depends on values, so the host must wait for a count.
_FIXES = {
    "aten::nonzero": "torch.where(mask, x, 0)    # or (x * mask).sum() / mask.sum(); no x[mask]",
    "aten::masked_select": "torch.where(mask, x, 0)    # masked_select must count its result first",
    "aten::repeat_interleave": "x.repeat_interleave(repeats, output_size=total)    # if the host knows it",
    "aten::one_hot": "functional.one_hot(x, num_classes=classes)    # otherwise torch looks up the largest",
    "aten::bincount": "torch.zeros(bins, device=x.device).scatter_add_(0, x, ones)    # not bincount",
    "aten::equal": "(a == b).all()    # stays on the GPU; torch.equal reads the answer",
    "aten::allclose": "torch.isclose(a, b).all()    # stays on the GPU; torch.allclose reads the answer",
    "aten::_linalg_check_errors": "torch.linalg.cholesky_ex(a), inv_ex, solve_ex    # no check for errors",
    WaitCause.UPLOAD.value: (
        'torch.full((), x, device="cuda")    # instead of torch.tensor(x).cuda(); or create it once\n'
        'x.pin_memory().to("cuda", non_blocking=True)    # for tensors in host memory'
    ),
    WaitCause.DOWNLOAD.value: (
        'y = x.to("cpu", non_blocking=True)    # into pinned memory; wait once, before you use it'
    ),
}
_METRICS = line(
    Change.METRICS,
    "hits += (scores.argmax(-1) == labels).sum()    # on the GPU; fetch the sum at the end",
)
_SIZED = {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
# Operators that take rows by index or put them back, and the nodes of autograd for them.
_PICKS = late_pattern(
    r"^aten::(index|index_put_?|index_add_?|index_select|index_copy_?|masked_select|nonzero|_unique2|unique_dim)$"
    r"|^autograd::engine::evaluate_function: (Index|MaskedSelect)\w*Backward\d*$"
)
_INSTEAD = 12
"""Operators, forward and backward, that replace one part that was picked: products, sums."""
_PARTS = 4
"""From this many parts in a step, the program is taken to loop over parts that could be one."""
_ONE_CALL = line(
    Change.ONE_CALL, "metric.update(scores, labels)    # of the whole batch, not sample by sample"
)
_COPY = "aten::copy_"
_UNIQUE = "x.sort().values    # torch.unique must count first; sort() and a mask of changes have a fixed size"
_COMPUTING = ("forward", "other")
"""Phases in which a program computes with what it fetched: metrics, samples."""
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
    loops: Table[Loop],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Operators make the host wait for the GPU: masks, nonzero(), .cpu(), small tensors copied over.

    Gain: a host that does not wait gets ahead of the GPU by the time of the waits. The step gets shorter by
    that lead, as far as the GPU waits for the host anywhere in it.

    - at least: the waits, or what picking rows and putting them back takes beyond doing the same with a
      mask. If other calls wait as well, only as far as the GPU was idle right after these waits.
    - at most: also the operators around the waits. If tensors were fetched, also what the host computed
      itself, except for a launch of each of these operators on the GPU. If the program picks rows several
      times a step, every operator that runs as often: it works on one part at a time, and could work on all
      at once.

    Large copies have rules of their own.
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
    return _advice(mean_step, mine, saving, named_loops(loops, step_classes))


def _beside_ns(mean_step: MeanStep, mine: list[Wait], step_ops: Table[StepOp]) -> Bounds:
    """Host time of a step that goes with the waits: picking rows, and work on one part at a time."""
    waited = sum(wait.waited_ns for wait in mine)
    copies = [wait for wait in mine if wait.cause in _WHAT]
    causes = {wait.reason.op for wait in mine if wait.cause is WaitCause.OPERATOR}
    rows = [row for row in step_ops if row.within is None]
    cheapest, mean = launch_costs(step_ops)
    # What copies and other operators cost, without the waits in them.
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
    """Host time of operators that ran on the host, beyond what it takes to launch them."""
    own = [row for row in rows if not row.launches and row.phase in _COMPUTING]
    return sum(max(0.0, row.host_ns - row.calls * launch_ns) for row in own)


def _advice(mean_step: MeanStep, mine: list[Wait], saving: Saving, loops: list[NamedLoop]) -> Advice:
    by_reason: dict[Reason, list[Wait]] = {}
    for wait in mine:
        by_reason.setdefault(wait.reason, []).append(wait)
    ranked = sorted(by_reason.items(), key=lambda one: (-_cost(one[1]), one[0].name))
    waited = mean_step.per_step(sum(wait.waited_ns for wait in mine))
    starved = mean_step.per_step(sum(wait.starved_ns for wait in mine))
    calls = mean_step.per_step(sum(wait.calls for wait in mine))
    turns = _turns(mine, calls, loops)
    looped = ""
    if turns:
        looped = f" They are made in a loop of {units.count(turns)} turns; one call for all would wait once."
    fixes = [*([_ONE_CALL] if turns else ()), *(one for reason, _ in ranked[:3] for one in _fix(reason))]
    causes = " and ".join(
        f"{_WHAT.get(reason.cause, reason.name)} "
        f"({often(mean_step.per_step(sum(wait.calls for wait in group)), 'wait')})"
        for reason, group in ranked[:3]
    )
    return Advice(
        title="Operators make the host wait for the GPU",
        because=f"The host waits for the GPU in {causes}: {held_up(mean_step, waited, mine)}{looped}",
        saving=saving,
        certainty="certain",
        fix=fix_of(*fixes),
        check="stepscope show host_syncs: no rows for these operators.",
        evidence={
            "waits_per_step": calls,
            "waited_ns": round(waited),
            "starved_ns": round(starved),
            "starved_share": mean_step.share(starved),
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of_waits(mine, mean_step.steps, "wait"),
    )


def _turns(mine: list[Wait], calls: float, loops: list[NamedLoop]) -> int | None:
    """How often the loop repeats that makes all the waits, a few in each turn."""
    ops = {wait.reason.op or _COPY for wait in mine}
    for loop in loops:
        if (
            loop.repeats >= _PARTS
            and ops <= loop.names
            and calls >= loop.repeats
            and not calls % loop.repeats
        ):
            return loop.repeats
    return None


def _cost(waits: list[Wait]) -> float:
    return sum(wait.waited_ns + wait.starved_ns for wait in waits)


def _fix(reason: Reason) -> tuple[FixLine | str, ...]:
    cause = reason.name
    if "unique" in cause:
        return (_UNIQUE,)
    known = _FIXES.get(cause, f"# {cause} waits for the GPU: call it outside the loop, or not in every step")
    return (_METRICS, known) if reason.cause is WaitCause.DOWNLOAD else (known,)
