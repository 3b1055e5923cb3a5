"""Whole rows are sorted on the GPU."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["full_sorts"]

_SORTS = late_pattern(r"aten::(sort|argsort|msort)")
_FIX = fix_of(
    "best, indices = scores.topk(10)    # instead of scores.sort(descending=True) and the first ten",
    "rank = (scores > scores.gather(1, target)).sum(1)    # the rank of one item: count what is above it",
)


@rule(category=Category.DEVICE, yields_to=("sampling_cost",))
def full_sorts(
    mean_step: MeanStep, step_ops: Table[StepOp], step_classes: Table[StepClass], *, least_share: float = 0.08
) -> Advice | None:
    """Rows are sorted as a whole, though often only the first few or the rank of one are wanted.

    A sort goes over all its numbers and their indices several times; to select the first few, one pass or
    two are enough.

    Gain:

    - at most: all its GPU time.
    - at least: nothing. The order of all may be needed.
    """
    calls = [
        op
        for op in step_ops
        if _SORTS.fullmatch(op.name or "") and (op.within is None or not op.within.startswith("aten::"))
    ]
    ns = mean_step.per_step(sum(op.device_ns for op in calls))
    saving = off_device((0.0, ns), mean_step)
    if not calls or mean_step.gain(saving).high_share < least_share:
        return None
    number = sum(op.per_step for op in calls)
    trains = any(one.backward_passes or one.optimizer for one in step_classes)
    return Advice(
        title="Whole rows are sorted on the GPU",
        because=f"Sorting takes {units.duration(ns)} of a step, {units.share(ns / mean_step.busy_ns)} of the "
        f"GPU's work, {often(number, 'call')}. If only the first few are used, or where one item stands"
        f"{'' if trains else ', as in metrics of a ranking'}, it need not be sorted.",
        saving=saving,
        certainty="possible",
        fix=_FIX,
        check="stepscope show step_ops: device_ns of aten::sort falls.",
        evidence={
            "sorting_ns": round(ns),
            "busy_share": ns / mean_step.busy_ns,
            "calls_per_step": number,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.INDEXING)}),
        locations=locations_of(
            (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted(calls, key=lambda op: -op.device_ns)
        ),
    )
