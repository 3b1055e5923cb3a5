"""Much of the step is gathering, scattering and sorting."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope import units
from stepscope.analyses.late_phases import LatePhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Saving, rule
from stepscope.findings._op_costs import OpCost, cost_of, places_of, python_beside, waits_of
from stepscope.findings.pace import Pace
from stepscope.tables import Table

__all__ = ["scatter_heavy"]

# Operators that read or write where an index says, and those that sort. To look up embeddings is none of
# them, for that is what a model is made of.
_INDEXING = re.compile(
    r"aten::(index(_put|_copy|_add|_fill|_reduce|_select)?_?|_index_put_impl_|scatter\w*|gather|take|put_|"
    r"take_along_dim|masked_(select|scatter_?)|sort|argsort|msort|topk|searchsorted|bucketize|_?unique\w*|"
    r"nonzero|bincount)"
    r"|autograd::engine::evaluate_function: "
    r"(Index|IndexPut|IndexSelect|IndexAdd|IndexCopy|Gather|Scatter|ScatterAdd|Take|Sort|Topk)Backward\d"
)
# index_put_ sorts its indices if it accumulates, or if torch must be deterministic; so does the backward of
# an index. It takes a dozen kernels then in place of one.
_MAY_SORT = re.compile(r"aten::_?index_put(_impl)?_?|.*: Index(Put)?Backward0")
_SORTS_FROM = 4
_ATTENTION = re.compile(r"aten::scaled_dot_product_attention|.*unified_attention.*")
LOOP = 8
"""So many calls of one operator from one place in a step are a loop."""
LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class _Indexing:
    """What the program called, all of it and the parts that could be less."""

    ops: tuple[StepOp, ...]
    cost: OpCost
    looped: OpCost
    """Calls of loops, but for one of each."""
    sorted: OpCost
    """Calls that sort their indices."""
    free: OpCost
    """Calls of loops, but for one of each, that accumulate or run as often as those: their order is free."""


@rule
def scatter_heavy(
    pace: Pace, late_phases: Table[LatePhase], step_ops: Table[StepOp], *, least_share: float = 0.02
) -> Advice | None:
    """Gathering, scattering and sorting take much of the step, often in a loop of Python's.

    Gain: n calls from one place become one that does the work of all. So 1 - 1/n of the time in which the
    device waits for them goes, at the most with the Python around them; half of it at the least, since the
    indices of all have to be put together. Where index_put_ sorts its indices, because it accumulates, the
    order of the calls does not matter: all of that time goes, with what else the loop calls as often. If
    more than half of all late time goes so, the host is ahead of the device afterwards, and no late time
    need be left. Of the device's time for sorting calls half goes at the least and 9/10 at the most: of
    a dozen kernels one stays. Of other kernels in loops nothing at the least and 1 - 1/n at the most, since
    short ones do not fill the device.
    """
    found = _indexing(step_ops, pace)
    waits = waits_of(found.cost.late_ns, found.cost.launches, pace, late_phases)
    if pace.share(waits[0] + found.cost.device_ns) < least_share:
        return None
    saving = _saving(found, pace, late_phases, step_ops)
    if pace.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(found, saving, pace.with_latency(found.cost.late_ns))


def _saving(found: _Indexing, pace: Pace, late_phases: Table[LatePhase], step_ops: Table[StepOp]) -> Saving:
    late = waits_of(found.looped.late_ns, found.looped.launches, pace, late_phases)
    free = waits_of(found.free.late_ns, found.free.launches, pace, late_phases)
    least = (late[0] + min(late[0], free[0])) / 2
    most = late[1] + python_beside(found.looped, pace, late_phases, step_ops)
    if most > pace.late_ns / 2:
        most = pace.late_ns
    device_ns = max(found.looped.device_ns, 0.9 * found.sorted.device_ns)
    return Saving(late_ns=(least, most), device_ns=(0.5 * found.sorted.device_ns, device_ns))


def _indexing(step_ops: Table[StepOp], pace: Pace) -> _Indexing:
    ops = tuple(op for op in step_ops if op.within is None and _INDEXING.fullmatch(op.name or ""))
    layers = sum(op.per_step for op in step_ops if op.within is None and _ATTENTION.fullmatch(op.name or ""))
    # Every layer writes its keys and values to a cache: that is no loop over indices.
    cached = {round(layers), round(2 * layers)}
    loops = [op for op in ops if op.per_step >= LOOP and op.phase != "backward"]
    loops = [op for op in loops if not layers or round(op.per_step) not in cached]
    free = {op.per_step for op in loops if _sorts(op)}
    return _Indexing(
        ops=ops,
        cost=cost_of(ops, pace),
        looped=_but_one(loops, pace),
        sorted=cost_of((op for op in ops if _sorts(op)), pace),
        free=_but_one((op for op in loops if op.per_step in free), pace),
    )


def _but_one(ops: Iterable[StepOp], pace: Pace) -> OpCost:
    """What n calls cost without one of them."""
    parts = [(cost_of([op], pace), 1 - 1 / op.per_step) for op in ops]
    return OpCost(
        calls=sum(cost.calls * part for cost, part in parts),
        late_ns=sum(cost.late_ns * part for cost, part in parts),
        device_ns=sum(cost.device_ns * part for cost, part in parts),
        launches=sum(cost.launches * part for cost, part in parts),
    )


def _sorts(op: StepOp) -> bool:
    return bool(_MAY_SORT.fullmatch(op.name or "")) and op.launches >= _SORTS_FROM * op.calls > 0


def _advice(found: _Indexing, saving: Saving, waited_ns: float) -> Advice:
    most = max(found.ops, key=lambda op: (op.late_ns + op.device_ns, op.name or ""))
    lines = []
    if found.looped.calls:
        lines.append("buffer[steps, rows] = values    # once, with the indices of the whole loop, not in it")
        lines.append("buffer = torch.stack(values)    # or collect the parts, and stack them after the loop")
    if found.sorted.calls:
        lines.append("total.index_add_(0, index, values)    # in place of index_put_(…, accumulate=True)")
    if not lines:
        lines.append("x = torch.where(mask, new, x)    # a mask in place of an index, or an index made once")
    loop = f"; {units.tally(found.looped.calls)} of the calls are in loops" if found.looped.calls else ""
    return Advice(
        title="Gathering and scattering take much of the step",
        because=f"{units.tally(found.cost.calls)} calls a step, {units.tally(most.per_step)} of them "
        f"{(most.name or '').rpartition(':')[2].strip()}, take {units.duration(found.cost.device_ns)} on the "
        f"device, which waits {units.duration(waited_ns)} for them{loop}.",
        saving=saving,
        certainty="likely" if found.looped.calls or found.sorted.calls else "possible",
        fix="\n".join(lines),
        check="stepscope show step_ops: fewer calls of index_put_, index_copy_ and their kin.",
        evidence={
            "calls_per_step": found.cost.calls,
            "calls_in_loops_per_step": found.looped.calls,
            "late_ns": found.cost.late_ns,
            "device_ns": found.cost.device_ns,
            "sorting_device_ns": found.sorted.device_ns,
            "most": most.name,
        },
        claims=frozenset({"late:scatter", "device:indexing"}),
        locations=places_of(found.ops),
    )
