"""The optimizer takes a large part of the step."""

from __future__ import annotations

import re
from dataclasses import replace

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import places_of
from stepscope.findings._optimizers import (
    FINDING_SHARE,
    Update,
    accumulates,
    can_be_fused,
    cost_of_phase,
    fused_line,
    fusing_saves,
    optimizer_time,
    update_of,
)
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["optimizer_share"]

LEAST_GAIN = 0.01
TABLE_SHARE = 0.5
"""The table must be this part of what the optimizer goes through, to be named as the reason."""
SPARSE_LOOK_UPS = 16
"""A sparse update takes at most as long as so many look-ups: rows are sorted and added up, and the weight and
two states of each are read and written. That is eight look-ups, and as much again for its small kernels. Rows
are few if that takes no longer than a fused update of the whole table and the filling of its gradient."""
# Tensors that an update reads and writes, by optimizer. A fused one reads weight and gradient and writes the
# weight, and does both to each state; one on lists of tensors (foreach) has a kernel for each operation.
_PASSES = {
    "fused": {"Adam": 7, "AdamW": 7, "Adagrad": 5, "SGD": 3},
    "foreach": {"Adam": 18, "AdamW": 20, "Adagrad": 13, "SGD": 3},
}
# Look-ups of rows; and their dense gradient, a table of zeros to which the rows are added.
_LOOK_UP = late_pattern(r"aten::(embedding|embedding_bag)")
_DENSE = late_pattern(r"aten::(embedding_dense_backward|_embedding_bag_dense_backward)")
_ZEROS = late_pattern(r"aten::(zeros|new_zeros|zeros_like)")
_NODE = late_pattern(r"autograd::engine::evaluate_function: Embedding(Bag)?Backward\d*")
_ADD = late_pattern(r"aten::add_?")
_ADD_PASSES = 3
"""Tensors that adding up two gradients reads and writes."""
_SPARSE = {
    "Adam": "torch.optim.SparseAdam(table.parameters(), lr=lr)",
    "AdamW": "torch.optim.SparseAdam(table.parameters(), lr=lr)",
}


@dataclass(frozen=True, slots=True)
class _Table:
    """An embedding table whose gradient is dense, although few rows are looked up."""

    share: float
    """Part of the optimizer's GPU time that goes through it, at least."""
    filled_ns: float
    """GPU time for filling its gradients with zeros and for adding them up, in a step."""
    backward_ns: float
    """GPU time for making its gradient, all of that included."""
    looked_up_ns: float
    """GPU time for looking rows up in the forward pass."""


@rule(category=Category.DEVICE)
def optimizer_share(  # noqa: PLR0913  # each is a table or a threshold
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    phases: Table[Phase],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    annotations: Table[Annotation],
    *,
    finding_share: float = FINDING_SHARE,
    accumulating_share: float = 0.10,
) -> Advice | None:
    """The optimizer takes a large part of the step, although it does not update tensors one by one.

    Gain, if lists of tensors are updated (foreach): a fused kernel saves all calls except one, and all passes
    over memory beyond its own.

    Gain, if the kernel is fused already:

    - at most: half of the optimizer's time, with one update for twice as many samples.
    - at least: nothing, because the profile does not tell whether the training allows that.

    Gain, if most of it goes through an embedding table of which few rows are looked up (sparse gradients):

    - at most: all of the optimizer's work and of the dense gradient's.
    - at least: the optimizer's passes over the table and the filling with zeros, which shows how long one
      pass takes, and the sums of the gradients of several look-ups; less sixteen times the look-up, because
      a sparse update sorts the rows and launches kernels of its own. Where that is less than half of the
      passes, half.
    """
    update = update_of(step_ops, annotations)
    if update is None or update.kind == "per tensor":
        return None
    spent_ns = optimizer_time(mean_step, phases, starving_phases)
    several = accumulates(step_classes)
    if mean_step.share(spent_ns) <= (accumulating_share if several else finding_share):
        return None
    table = _dense_table(update, mean_step, starving_phases, step_ops)
    if table:
        saving = _rows_only(table, mean_step, starving_phases)
    else:
        saving = (
            fusing_saves(update, mean_step, starving_phases)
            if can_be_fused(update)
            else _half(mean_step, starving_phases)
        )
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    advice = _advice(update, saving, spent_ns, mean_step, several=several)
    return _of_table(advice, update, table) if table else advice


def _dense_table(
    update: Update, mean_step: MeanStep, starving_phases: Table[StarvingPhase], step_ops: Table[StepOp]
) -> _Table | None:
    """The embedding table, if the optimizer spends most of its work on it for a few rows."""
    passes = _PASSES.get(update.kind, {}).get(update.name or "", 0)
    optimizer_ns = cost_of_phase(mean_step, starving_phases).device_ns
    filled_ns = _device_ns(step_ops, mean_step, _ZEROS, within=_DENSE)
    looked_up_ns = sum(
        mean_step.per_step(op.device_ns)
        for op in step_ops
        if _LOOK_UP.fullmatch(op.name or "") and not op.within
    )
    added_ns = sum(mean_step.per_step(op.device_ns) for op in step_ops if _is_sum(op))
    # Gradients of several look-ups are filled each and added up: all but one of the fills.
    table_ns = filled_ns - added_ns / _ADD_PASSES
    fused_ns = (_PASSES["fused"].get(update.name or "", 0) + 1) * table_ns
    is_tied = _is_tied(step_ops, filled_ns, added_ns)
    if not optimizer_ns or is_tied or SPARSE_LOOK_UPS * looked_up_ns >= fused_ns:
        return None
    share = min(1.0, passes * table_ns / optimizer_ns)
    if share < TABLE_SHARE:
        return None
    backward_ns = _device_ns(step_ops, mean_step, _DENSE) + added_ns
    return _Table(share, filled_ns + added_ns, backward_ns, looked_up_ns)


def _is_sum(op: StepOp) -> bool:
    """Whether it adds up two gradients of a weight that is looked up."""
    return bool(_ADD.fullmatch(op.name or "") and _NODE.fullmatch(op.within or ""))


def _is_tied(step_ops: Table[StepOp], filled_ns: float, added_ns: float) -> bool:
    """Whether the table is a matrix of the model, too, so that one of its gradients is dense anyway.

    Look-ups of one table add up one gradient less than they make. If each is added to something, that comes
    from a product. Other tables add nothing, but take little: then the sums take longer than they could.
    """
    sums = sum(op.per_step for op in step_ops if _is_sum(op))
    made = sum(op.per_step for op in step_ops if _DENSE.fullmatch(op.name or ""))
    if not sums:
        return False
    most_of_look_ups = sums / (sums + 1)
    return sums >= made or added_ns > _ADD_PASSES * (most_of_look_ups + 1) / 2 * filled_ns


def _device_ns(
    step_ops: Table[StepOp], mean_step: MeanStep, name: re.Pattern[str], within: re.Pattern[str] | None = None
) -> float:
    rows = [op for op in step_ops if name.fullmatch(op.name or "")]
    return mean_step.per_step(
        sum(op.device_ns for op in rows if within is None or within.fullmatch(op.within or ""))
    )


def _rows_only(table: _Table, mean_step: MeanStep, starving_phases: Table[StarvingPhase]) -> Saving:
    """What sparse gradients save."""
    optimizer_ns = cost_of_phase(mean_step, starving_phases).device_ns
    most = min(mean_step.busy_ns, optimizer_ns + table.backward_ns)
    passes = table.share * optimizer_ns
    least = max(passes / 2, passes + table.filled_ns - SPARSE_LOOK_UPS * table.looked_up_ns)
    return Saving(device_ns=(min(most, least), most))


def _of_table(advice: Advice, update: Update, table: _Table) -> Advice:
    sparse = _SPARSE.get(update.name or "", f"torch.optim.{update.name}(table.parameters(), lr=lr)")
    return replace(
        advice,
        title="A whole embedding table is updated for a few rows",
        because=f"{advice.because} At least {units.share(table.share)} of its work is on an embedding table "
        f"of which a step looks up only a few rows. Filling the table's gradient with zeros alone takes "
        f"{units.duration(table.filled_ns)}.",
        fix="table = nn.Embedding(entries, width, sparse=True)    # or EmbeddingBag(..., sparse=True)\n"
        f"optimizer = {sparse}    # for the table alone; no weight decay",
        evidence={
            **advice.evidence,
            "table_share": table.share,
            "table_filled_ns": table.filled_ns,
            "table_backward_ns": table.backward_ns,
        },
        claims=advice.claims | {Claim(Time.DEVICE, Part.INDEXING)},
    )


def _half(mean_step: MeanStep, starving_phases: Table[StarvingPhase]) -> Saving:
    phase = cost_of_phase(mean_step, starving_phases)
    starved_ns = min(mean_step.starved_ns, mean_step.with_latency(phase.starved_ns))
    return Saving(
        starved_ns=(0.0, starved_ns / 2), device_ns=(0.0, min(mean_step.busy_ns, phase.device_ns) / 2)
    )


def _advice(update: Update, saving: Saving, spent_ns: float, mean_step: MeanStep, *, several: bool) -> Advice:
    fusable = can_be_fused(update)
    how = {"foreach": "works on lists of tensors and is not fused", "fused": "is fused already"}[update.kind]
    every = "although gradients are accumulated" if several else "after every backward pass"
    passes = line(
        Change.NO_SYNC,
        "for part in batch.chunk(n): loss_of(part).backward()    # several passes for one optimizer.step()",
    )
    lines: list[FixLine | str] = [
        passes,
        line(Change.BATCH, "batch_size *= 2    # or a larger batch", why="fewer updates for each sample"),
    ]
    if fusable:
        lines = [fused_line(update.name), passes]
    elif (update.name or "").startswith("Adam"):
        lines.append("optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=lr)    # or 8-bit states")
    return Advice(
        title="The optimizer takes a large part of the step",
        because=f"{update.name or 'The optimizer'} takes {units.duration(spent_ns)} of a step "
        f"({units.share(mean_step.share(spent_ns))}), {every}. It {how}.",
        saving=saving,
        certainty="likely" if fusable else "possible",
        fix=fix_of(*lines),
        check="stepscope show phases: smaller stretch_share and device_share of the optimizer.",
        evidence={
            "optimizer": update.name,
            "kind": update.kind,
            "optimizer_ns": spent_ns,
            "optimizer_share": mean_step.share(spent_ns),
            "accumulating": several,
        },
        claims=frozenset({Claim(Time.STARVED, Part.OPTIMIZER), Claim(Time.DEVICE, Part.OPTIMIZER)}),
        locations=places_of(update.ops, "operator"),
    )
