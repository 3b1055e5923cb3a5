"""Gather, scatter and sort take much of the step."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part
from stepscope.findings._op_costs import OpCost, cost_of, places_of, waits_of
from stepscope.findings._phrases import if_idle, often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["scatter_heavy"]

# Operators that read or write where an index says, and those that sort. Embedding look-ups are left out: they
# belong to the model.
_INDEXING = late_pattern(
    r"aten::(index(_put|_copy|_add|_fill|_reduce|_select)?_?|_index_put_impl_|scatter\w*|gather|take|put_|"
    r"take_along_dim|masked_(select|scatter_?)|sort|argsort|msort|topk|searchsorted|bucketize|_?unique\w*|"
    r"nonzero|bincount)"
    r"|autograd::engine::evaluate_function: "
    r"(Index|IndexPut|IndexSelect|IndexAdd|IndexCopy|Gather|Scatter|ScatterAdd|Take|Sort|Topk)Backward\d"
)
# index_put_ sorts its indices if it accumulates, or if torch must be deterministic; so does the backward of
# an index. Then it takes a dozen kernels instead of one.
_MAY_SORT = late_pattern(r"aten::_?index_put(_impl)?_?|.*: Index(Put)?Backward0")
# These add where an index says with one kernel; where torch must be deterministic, by way of index_put_.
_MUST_SORT = late_pattern(r"aten::(index_add|scatter_add|index_copy)_?|.*: (IndexSelect|Gather)Backward0")
_SORTS_FROM = 4
_ADDS_IN = 2
"""Kernels of index_add_, including the zeros that it adds to."""
# Their results have sizes that only the GPU knows, so the host waits: implicit_syncs is about that.
_WAITS = late_pattern(
    r"aten::(nonzero|masked_select|_?unique\w*|bincount|item|is_nonzero|_local_scalar_dense)"
)
_PRODUCTS = ("matmul", "convolution", "attention")
_ATTENTION = late_pattern(r"aten::scaled_dot_product_attention|.*unified_attention.*")
LOOP = 8
"""This many calls of one operator from one place in a step are a loop."""
LEAST_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class _Indexing:
    """What the program called: all of it, and the parts that could be less."""

    ops: tuple[StepOp, ...]
    cost: OpCost
    loops: tuple[StepOp, ...]
    """Those in loops, with their gradients."""
    sorts: tuple[StepOp, ...]
    """Those that sort their indices."""
    bodies: tuple[StepOp, ...]
    """All that loops call, indexing or not."""


@rule(category=Category.DEVICE)
def scatter_heavy(
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Gather, scatter and sort take much of the step, often in a Python loop.

    Gain: n calls from one place, with their n gradients, become one call.

    - at most: 1 - 1/n of the host's time for them, and of everything else that runs as often or a multiple of
      that, if indexing is half of it or more. Not if matrix products are among it: then the loop goes over
      layers. Of GPU time, 1 - 1/n of the kernels in the loop, and 9/10 of calls that sort their indices.
    - at least: half of the host's time for the calls, because the indices have to be put together. Of GPU
      time, half of calls that sort. These take a dozen kernels, index_add_ two, so the rest of the launches
      goes, loop or not.

    The step gets no shorter than what is left of the host or of the GPU. Calls that wait for the GPU belong
    to implicit-syncs.
    """
    found = _indexing(step_ops, mean_step)
    waits = waits_of(found.cost.starved_ns, found.cost.launches, mean_step, starving_phases)
    if mean_step.share(waits[0] + found.cost.device_ns) < least_share:
        return None
    saving = _saving(found, mean_step, step_ops)
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(found, saving, mean_step)


def _saving(found: _Indexing, mean_step: MeanStep, step_ops: Table[StepOp]) -> Saving:
    least = most = device_ns = 0.0
    for op in {id(op): op for op in (*found.bodies, *found.sorts)}.values():
        part, but_one = _host_part(op, step_ops), 1 - 1 / max(1.0, op.per_step)
        spared = 1 - _ADDS_IN * op.calls / op.launches if op in found.sorts else 0.0
        looped = but_one if op in found.bodies else 0.0
        least += part * max(spared, 0.5 * but_one if op in found.loops else 0.0)
        most += part * max(spared, looped)
        sorting = 0.9 if op in found.sorts else 0.0
        device_ns += mean_step.per_step(op.device_ns) * max(sorting, looped)
    sorting_ns = cost_of(found.sorts, mean_step).device_ns
    return fewer_calls(mean_step, (least, most), (0.5 * sorting_ns, min(device_ns, mean_step.busy_ns)))


def _host_part(op: StepOp, step_ops: Table[StepOp]) -> float:
    """The part of the host's work that is in it; none if it waits, or is the gradient of what does."""
    waiting = {row.name for row in step_ops if row.within is None and _WAITS.fullmatch(row.name or "")}
    waiting |= {row.within for row in step_ops if _WAITS.fullmatch(row.name or "")}
    return 0.0 if called_as(op) in waiting else host_part([op], step_ops)


def _indexing(step_ops: Table[StepOp], mean_step: MeanStep) -> _Indexing:
    outer = [op for op in step_ops if op.within is None]
    ops = tuple(op for op in outer if _INDEXING.fullmatch(op.name or ""))
    layers = sum(op.per_step for op in outer if _ATTENTION.fullmatch(op.name or ""))
    # Every layer writes its keys and values to a cache: that is not a loop over indices.
    cached = {round(layers), round(2 * layers)} if layers else set()
    turns = {
        op.per_step
        for op in ops
        if op.per_step >= LOOP and op.phase != "backward" and round(op.per_step) not in cached
    }
    loops = tuple(op for op in ops if op.per_step in turns)
    bodies = {id(op): op for op in loops}
    for count in turns:
        body = [op for op in outer if op.per_step and op.per_step % count == 0 and op.phase != "optimizer"]
        products = any(family_of(None, called_as(op)) in _PRODUCTS for op in body)
        indexing_ns = sum(op.host_ns for op in body if op in loops)
        if not products and 2 * indexing_ns >= sum(op.host_ns for op in body):
            bodies |= {id(op): op for op in body}
    return _Indexing(
        ops=ops,
        cost=cost_of(ops, mean_step),
        loops=loops,
        sorts=tuple(op for op in ops if _sorts(op)),
        bodies=tuple(bodies.values()),
    )


def _sorts(op: StepOp) -> bool:
    named = any(names.fullmatch(op.name or "") for names in (_MAY_SORT, _MUST_SORT))
    return named and op.launches >= _SORTS_FROM * op.calls > 0


def _advice(found: _Indexing, saving: Saving, mean_step: MeanStep) -> Advice:
    looped, sorting = cost_of(found.loops, mean_step), cost_of(found.sorts, mean_step)
    waited_ns = mean_step.with_latency(found.cost.starved_ns)
    most = max(found.ops, key=lambda op: (op.starved_ns + op.device_ns, op.name or ""))
    lines = []
    if looped.calls:
        lines.append("buffer[steps, rows] = values    # once after the loop, with all its indices")
        lines.append(
            "buffer = torch.stack(values)    # or collect the parts in a list, and stack them after the loop"
        )
    if any(_MUST_SORT.fullmatch(op.name or "") for op in found.sorts):
        lines.append(
            "torch.use_deterministic_algorithms(False)    # these sort only where they must be deterministic"
        )
    elif sorting.calls:
        lines.append("total.index_add_(0, index, values)    # instead of index_put_(…, accumulate=True)")
        lines.append("table.index_select(0, index)    # instead of table[index], whose gradient sorts")
    if not lines:
        lines.append("x = torch.where(mask, new, x)    # a mask instead of an index, or an index made once")
    name, calls = (most.name or "").rpartition(":")[2].strip(), found.cost.calls
    which = f"all {name}" if most.per_step == calls else f"{units.tally(most.per_step)} of them {name}"
    number = "All" if looped.calls == calls else units.tally(looped.calls)
    loop = f" {number} of the calls are made in loops." if looped.calls else ""
    return Advice(
        title="Gather, scatter and sort take much of the step",
        because=f"{often(calls, 'such call')} ({which}) take {units.duration(found.cost.device_ns)} of GPU "
        "time." + if_idle(waited_ns, "The GPU waits {} for them.") + loop,
        saving=saving,
        certainty="likely" if looped.calls or sorting.calls else "possible",
        fix="\n".join(lines),
        check="stepscope show step_ops: fewer calls of index_put_, index_copy_ and the like.",
        evidence={
            "calls_per_step": found.cost.calls,
            "calls_in_loops_per_step": looped.calls,
            "starved_ns": found.cost.starved_ns,
            "device_ns": found.cost.device_ns,
            "sorting_device_ns": sorting.device_ns,
            "most": most.name,
        },
        claims=frozenset({Claim(Time.STARVED, Part.INDEXING), Claim(Time.DEVICE, Part.INDEXING)}),
        locations=places_of(found.ops),
    )
