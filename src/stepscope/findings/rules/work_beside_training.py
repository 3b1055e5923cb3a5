"""Operators that no gradient depends on take much of each training step."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.before_training import BeforeTraining
from stepscope.analyses.beside_training import BesideTraining
from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._phrases import often
from stepscope.findings._waits import of_shares
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["work_beside_training"]

_FIX = """\
if step % 100 == 0: log(norms(model))    # logs and checks once in many steps
metric.update(outputs, labels)           # metrics: sum up on the GPU, metric.compute() once an epoch"""

_NETWORK = " A network runs among them, after the weights are updated, on as much data as the training."
_FIX_NETWORK = """\
hits += (scores.detach().argmax(-1) == labels).sum()    # of the scores that the training has
if step % 500 == 0: validate(model, batches)            # once in many steps"""
_AS_LARGE = 0.5
"""Of the GPU's time in the forward pass: a network that takes less may act for the next step, as in
reinforcement learning."""

_ALL_AT_ONCE = "torch.nn.utils.clip_grad_norm_(parameters, 1.0)    # if it clips: one call, without a read"

_ONCE = fix_of(
    "features = spread(features, edges)    # once, before the training",
    "for batch in batches: loss_of(model(features[batch])).backward()    # the loop only trains",
)
_BATCH_BYTES = 1024
"""What is copied to the GPU in a step beyond this may be a new batch, or the indices of one."""


@rule(category=Category.HOST)
def work_beside_training(  # noqa: PLR0913  # each is a table or a threshold
    mean_step: MeanStep,
    beside_training: Table[BesideTraining],
    step_ops: Table[StepOp],
    before_training: Table[BeforeTraining],
    copies_by_op: Table[Copy],
    *,
    least_share: float = 0.05,
    least_before: float = 0.5,
) -> Advice | None:
    """Metrics, logs or checks run in each step: many operators that no gradient depends on.

    Gain, if they run once in many steps:

    - at most: 1.3 times their part of the step, with the Python between and around them, and all of their
      time on the GPU. If they read values, the host waits for the GPU no more, and runs ahead of it.
    - at least: 85 % of that part, and all of their time on the GPU. Nothing, if an optimizer follows: its
      update may depend on them, as where gradients are clipped by hand.

    A network is among them if it runs without gradients after the last update of a marked step, and takes
    half as long as the forward pass or longer.

    Or each step first computes something without weights, which takes most of the GPU's time, and may be the
    same in each step: features spread over a fixed graph. To normalise a batch takes a few passes over it,
    and training takes several for each layer, so it never takes half of the time. Gain, if computed once:

    - at most: all of its time on the GPU, and 1.3 times its part of the step on the host.
    - at least: nothing, because a profile does not tell whether its inputs are the same in each step.
    """
    forward = (op.device_ns for op in step_ops if op.within is None and op.phase in ("forward", "other"))
    forward_ns = mean_step.per_step(sum(forward))
    if forward_ns >= least_before * mean_step.busy_ns > 0:
        repeated = _repeated(mean_step, before_training, copies_by_op, least_before)
        if repeated:
            return repeated
    return _beside(mean_step, _each_step(mean_step, beside_training, forward_ns), least_share)


def _each_step(mean_step: MeanStep, rows: Table[BesideTraining], forward_ns: float) -> list[BesideTraining]:
    """What is done in each step; of networks those that take as long as the one that is trained."""
    often = [row for row in rows if row.stretches >= mean_step.steps - 1]
    networks_ns = mean_step.per_step(sum(row.device_ns for row in often if row.network))
    whole = networks_ns >= _AS_LARGE * (forward_ns - networks_ns)
    return [row for row in often if whole or not row.network]


def _beside(mean_step: MeanStep, rows: list[BesideTraining], least_share: float) -> Advice | None:
    """Advice about what follows the loss or the backward pass."""
    host_ns = mean_step.per_step(sum(row.host_ns for row in rows))
    device_ns = mean_step.per_step(sum(row.device_ns for row in rows))
    reads = mean_step.per_step(sum(row.reads for row in rows))
    saving = saved_by_dropping_stretches(mean_step, host_ns, device_ns, waits_go=bool(reads))
    if not rows or mean_step.gain(saving).low_share < least_share:
        return None
    if unsure := any(row.before_update for row in rows):
        saving = of_shares(mean_step, 0.0, mean_step.gain(saving).high_share)
    network = any(row.network for row in rows)
    fixes: list[FixLine | str] = [_FIX_NETWORK] if network else []
    fixes += [line(Change.LOG_LESS, _FIX)] if any(not row.network for row in rows) else []
    fixes += [_ALL_AT_ONCE] if unsure else []
    ops = mean_step.per_step(sum(row.ops for row in rows))
    waits = f", and {units.count(round(reads))} of them read a value from the GPU" if reads >= 1 else ""
    return Advice(
        title="Each step does work that no gradient needs",
        because=f"{often(ops, 'operator')} run after the loss is computed or after the backward pass, so no "
        "gradient depends on them: metrics, logs, checks, or copies of weights. They take "
        f"{units.duration(host_ns)} of the host's time in a step ({units.share(mean_step.share(host_ns))})"
        f"{waits}. Most of them are {rows[0].most_often}."
        + _NETWORK * network
        + (" An optimizer follows, and whether its update depends on them is not in the profile." * unsure),
        saving=saving,
        certainty="possible" if unsure else "likely",
        fix=fix_of(*fixes),
        check="stepscope show beside_training: less of the host's time, or no rows.",
        evidence={
            "ops_per_step": ops,
            "reads_per_step": reads,
            "host_ns": round(host_ns),
            "device_ns": round(device_ns),
            "most_often": rows[0].most_often,
        },
        claims=frozenset({Claim(Time.STARVED), *([Claim(Time.DEVICE)] if network else [])}),
        locations=locations_of(
            (row.user_frame, often(mean_step.per_step(row.ops), "operator"), row.most_often.split(", "))
            for row in rows
        ),
    )


def _repeated(
    mean_step: MeanStep,
    before_training: Table[BeforeTraining],
    copies_by_op: Table[Copy],
    least_before: float,
) -> Advice | None:
    """Advice about what comes before the model and may be the same in each step."""
    rows = [row for row in before_training if row.steps >= mean_step.steps - 1 and not row.products]
    device_ns = mean_step.per_step(sum(row.device_ns for row in rows))
    if not rows or device_ns < least_before * mean_step.busy_ns:
        return None
    moved = mean_step.per_step(sum(row.bytes or 0 for row in copies_by_op if row.direction == "HtoD"))
    if moved > _BATCH_BYTES:
        return None
    host_ns = mean_step.per_step(sum(row.host_ns for row in rows))
    most = mean_step.gain(saved_by_dropping_stretches(mean_step, host_ns, device_ns)).high_share
    ops = mean_step.per_step(sum(row.ops for row in rows))
    return Advice(
        title="Each step begins with work that no weight has a part in",
        because=f"{often(ops, 'operator')} run before the first that a gradient goes through. They take "
        f"{units.duration(device_ns)} of the GPU's time in a step "
        f"({units.share(device_ns / mean_step.busy_ns)}), most of it in {rows[0].longest}. Nothing is copied "
        "to the GPU in the step: if their inputs are the same each time, so is the result.",
        saving=of_shares(mean_step, 0.0, most),
        certainty="possible",
        fix=_ONCE,
        check="stepscope show before_training: no rows, or little device time.",
        evidence={
            "device_ns": round(device_ns),
            "busy_share": device_ns / mean_step.busy_ns,
            "host_ns": round(host_ns),
            "ops_per_step": ops,
            "longest": rows[0].longest,
        },
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED)}),
        locations=locations_of(
            (row.user_frame, often(mean_step.per_step(row.ops), "operator"), row.longest.split(", "))
            for row in rows
        ),
    )
