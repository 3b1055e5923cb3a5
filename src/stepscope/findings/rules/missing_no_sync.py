"""Gradients are reduced after every micro-step, although only their sum is used."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import ACCUMULATES, Exposed, exposed_of, kind_of
from stepscope.findings._phrases import often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["missing_no_sync"]

# What the reducer of DistributedDataParallel does to each gradient before it reduces it: it copies it into a
# bucket, or divides it in place if it is a view of one. Inside no_sync it does neither.
_PUT_IN_BUCKET = late_pattern(r"torch::distributed::reducer::(mul_out|copy_)|aten::div_")
_COPIED_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_MOSTLY = 0.9
_FIX = """\
with contextlib.nullcontext() if last_micro_step else model.no_sync():
    loss = compute_loss(model(batch)) / micro_steps    # the forward pass, too
    loss.backward()"""


@rule(category=Category.COMMUNICATION)
def missing_no_sync(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """Gradients are all-reduced in every micro-step, although the optimizer only needs their sum.

    Gain: only one of the P backward passes for an optimizer step has to reduce, so the part 1 − 1/P of the
    reducer's work goes.

    - at most: that part of copying into and out of buckets, and of the exposed communication.
    - at least: that part of the copying. If peers are behind, the ranks wait for them in the last pass
      instead.
    """
    passes = sum(one.steps * (one.backward_passes or 0) for one in step_classes)
    updates = sum(row.calls for row in annotations if row.name and row.name.startswith("Optimizer.step#"))
    hooks = [row for row in step_ops if row.within == ACCUMULATES]
    reduces = [row for row in hooks if kind_of(row.name) == "all-reduce"]
    filled = [row for row in hooks if _PUT_IN_BUCKET.fullmatch(row.name or "")]
    gradients = _calls(row for row in step_ops if row.name == ACCUMULATES)
    accumulates = updates and passes >= 1.9 * updates
    if not accumulates or not reduces or _calls(filled) < _MOSTLY * gradients:
        return None
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    copies = [*filled, *(row for row in step_ops if row.name == _COPIED_BACK)]
    saving = _saving(1 - updates / passes, copies, reduces, exposed, mean_step)
    if mean_step.share(saving.starved_ns[1] + saving.device_ns[1] + saving.waited_ns[1]) < least_share:
        return None
    all_reduces = mean_step.per_step(_calls(reduces))
    return Advice(
        title="Gradients are all-reduced in every micro-step",
        because=f"There are {times(passes / updates, 'backward pass')} for each optimizer step, and every "
        f"pass reduces all its gradients: {often(all_reduces, 'all-reduce')}."
        + (f" {units.duration(exposed.ns)} of a step is exposed communication." if exposed.ns else ""),
        saving=saving,
        certainty="likely",
        fix=fix_of(line(Change.NO_SYNC, _FIX)),
        check="stepscope show annotations: one …:all_reduce per bucket for each Optimizer.step, not several.",
        evidence={
            "backward_passes_per_update": passes / updates,
            "all_reduces_per_step": all_reduces,
            "needless_share": 1 - updates / passes,
            "exposed_communication_ns": round(exposed.ns),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )


def _calls(rows: Iterable[StepOp]) -> int:
    return sum(row.calls for row in rows)


def _saving(
    needless: float, copies: list[StepOp], reduces: list[StepOp], exposed: Exposed, mean_step: MeanStep
) -> Saving:
    """The needless part of the copies between gradients and buckets, their launches and what is exposed."""
    starved = needless * mean_step.with_latency(
        mean_step.per_step(sum(row.starved_ns for row in (*copies, *reduces)))
    )
    copied = min(needless * mean_step.per_step(sum(row.device_ns for row in copies)), mean_step.busy_ns)
    return Saving(
        starved_ns=(0.5 * starved, starved),
        device_ns=(copied, min(copied + needless * exposed.device_ns, mean_step.busy_ns)),
        waited_ns=(0.0, needless * exposed.host_ns),
    )
