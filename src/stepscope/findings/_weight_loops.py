"""Loops in the program that go through its weights one by one, outside of any optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.findings import Saving
from stepscope.findings._communication import buffers_broadcast
from stepscope.findings._op_costs import cost_of, part_of, python_beside, waits_of
from stepscope.findings._optimizers import merged_device_ns, turns_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.starving_phases import StarvingPhase
    from stepscope.analyses.step_classes import StepClass
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["WeightLoop", "loop_saves", "weight_loop_of"]

MOST_TURNS = 4
"""An operator is called once for every tensor, or a few times: hand-written Adam multiplies twice."""
TOLERANCE = 0.1
"""A loop over the weights may leave some out, or include frozen ones."""

# Arithmetic that torch also has for lists of tensors (torch._foreach_…). Only operators in place show that a
# loop updates something.
_IN_PLACE = late_pattern(
    r"aten::(add|sub|mul|div|lerp|addcmul|addcdiv|copy|clamp|clamp_min|clamp_max|sqrt|pow|neg|sign|maximum)_"
)
_BESIDE = late_pattern(r"aten::(add|sub|rsub|mul|div|lerp|addcmul|addcdiv|sqrt|pow|neg|sign|maximum)")
# An autograd node: MulBackward0, CopyBackwards.
_NODE = late_pattern(r"(\w+?)Backwards?\d*")
# One row of a tensor: a loop that takes one for each call goes through rows, not through weights.
_ROW = "aten::select"
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_NORM_NODE = late_pattern(r"\w*BatchNorm\w*Backward\d*")
_NORM = late_pattern(r"aten::(batch_norm|sync_batch_norm)")


@dataclass(frozen=True, slots=True)
class WeightLoop:
    """Operators that are called for every tensor in turn, in a mean step."""

    ops: tuple[StepOp, ...]
    """What they cost, without other calls of the same operators."""
    tensors: float
    calls_per_tensor: float

    @property
    def names(self) -> tuple[str, ...]:
        """What it calls, by the names of torch's functions."""
        return tuple(dict.fromkeys((op.name or "").removeprefix("aten::") for op in self.ops))


def weight_loop_of(step_ops: Iterable[StepOp], step_classes: Iterable[StepClass]) -> WeightLoop | None:
    """The loop, if operators in place are called as often as there are weights, outside of autograd.

    Gradients are accumulated once for each weight and pass, which tells how many weights there are. A call
    under autograd has a node in its graph. Calls without a node, for every weight, are a hand-written
    optimizer, a moving average of the weights, a copy of them, or clipping of gradients. Where each comes
    with a row of a tensor, it is a loop over rows that happens to be as long.
    """
    rows = list(step_ops)
    lengths = _lengths(rows, step_classes)
    if not lengths:
        return None
    own = [op for op in rows if op.within is None and op.phase in ("forward", "other") and op.launches]
    outside = _outside_of_autograd(rows, own)
    counts: dict[tuple[str | None, str | None], float] = defaultdict(float)
    rows_of: dict[str | None, float] = defaultdict(float)
    for op in own:
        counts[op.name, op.user_frame] += op.per_step
    for op in rows:
        if op.name == _ROW and op.within is None:
            rows_of[op.user_frame] += op.per_step
    parts = {
        key: min(count, outside.get(key[0], 0.0)) / count
        for key, count in counts.items()
        if count and rows_of[key[1]] < count and _goes_through(min(count, outside.get(key[0], 0.0)), lengths)
    }
    ops = tuple(part_of(op, parts[key]) for op in own if (key := (op.name, op.user_frame)) in parts)
    if not any(_IN_PLACE.fullmatch(op.name or "") for op in ops):
        return None
    tensors, calls = turns_of(ops)
    return WeightLoop(ops, tensors, calls / tensors)


def _lengths(rows: list[StepOp], step_classes: Iterable[StepClass]) -> set[float]:
    """How many tensors a loop over all weights has, with and without the running means of batch norms."""
    classes = [(one.backward_passes or 0, one.steps) for one in step_classes]
    steps = sum(count for _, count in classes)
    passes = sum(count * several for several, count in classes) / steps if steps else 0.0
    gathered = sum(op.per_step for op in rows if op.name == _ACCUMULATES)
    if not gathered or not passes:
        return set()
    norms = sum(op.per_step for op in rows if _NORM_NODE.fullmatch(op.name or ""))
    # Passes share weights (accumulation), or each has its own (two networks).
    return {(gathered + means) / times for means in (0.0, 2 * norms) for times in (1.0, max(1.0, passes))}


def _goes_through(count: float, lengths: Iterable[float]) -> bool:
    """Whether an operator that is called so often is called for every tensor."""
    return any(
        abs(count / length - times) <= TOLERANCE for length in lengths for times in range(1, MOST_TURNS + 1)
    )


def _outside_of_autograd(rows: list[StepOp], own: list[StepOp]) -> dict[str | None, float]:
    """Calls in a step of operators that change a tensor, or go with these, that have no autograd node.

    Operators in place and not in place have nodes of the same name. The nodes are assigned first to what
    other operators call inside (a dropout multiplies), then to what is not in place, and last to what is in
    place.
    """
    nodes: dict[str, float] = defaultdict(float)
    inside: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for op in rows:
        name = op.name or ""
        if found := _NODE.fullmatch(name):
            nodes[found[1].lower()] += op.per_step
        elif op.within and op.phase == "forward" and name.startswith("aten::"):
            inside[_kind(name)] += op.per_step
    for op in own:
        if _IN_PLACE.fullmatch(op.name or "") or _BESIDE.fullmatch(op.name or ""):
            calls[op.name or ""] += op.per_step
    # A batch norm counts its batches with add_.
    counted = sum(op.per_step for op in rows if _NORM.fullmatch(op.name or ""))
    # DistributedDataParallel copies what it broadcast back into each buffer: which copies of the forward pass
    # are the program's own is not known then.
    own_copies = not buffers_broadcast(rows)
    left: dict[str | None, float] = {}
    for name, count in calls.items():
        known = max(0.0, nodes[_kind(name).replace("_", "")] - inside[_kind(name)])
        if name.endswith("_"):
            known = max(0.0, known - calls.get(name[:-1], 0.0))
        if name != "aten::copy_" or own_copies:
            left[name] = max(0.0, count - known - (counted if name == "aten::add_" else 0.0))
    return left


def _kind(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_")


def loop_saves(
    loop: WeightLoop,
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    step_ops: Iterable[StepOp],
    *,
    is_optimizer: bool,
) -> Saving:
    """What a few calls for lists of all tensors would save of a step.

    The host: at most the calls, with the Python between them. At least that Python stays, because something
    has to make the lists; and an optimizer that looks up the states of each tensor costs at least two of
    its calls. The GPU: as for a fused optimizer.
    """
    work = cost_of(loop.ops, mean_step)
    n = loop.calls_per_tensor
    python_ns = python_beside(work, mean_step, starving_phases, step_ops)
    stays_ns = max(python_ns, work.starved_ns * 2 / n) if is_optimizer else python_ns
    least_ns = max(0.0, work.starved_ns + python_ns - stays_ns)
    low, _ = waits_of(least_ns, work.launches, mean_step, starving_phases)
    _, high = waits_of(work.starved_ns + python_ns, work.launches, mean_step, starving_phases)
    device_ns = merged_device_ns(loop.ops, loop.tensors, n, mean_step)
    return Saving(starved_ns=(low, high), device_ns=device_ns)
