"""A tensor grows by concatenation, and all of it is copied each time."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.growing_joins import GrowingJoins
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["growing_tensors"]

_FIX = """\
parts.append(logits.argmax(-1))    # in the loop: keep what is needed of each, not all of it
chosen = torch.cat(parts)          # once, after the loop"""


@rule(category=Category.MEMORY, yields_to=("cache_copies",))
def growing_tensors(
    mean_step: MeanStep,
    growing_joins: Table[GrowingJoins],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """A tensor is joined to in a loop (torch.cat), and each time all that it has already is copied again.

    Gain:

    - at most: the GPU time of all these copies, if only a part of the tensors must be kept.
    - at least: the same without the last of them, because all parts can be joined at once after the loop.
    """
    rows = list(growing_joins)
    copied = mean_step.per_step(sum(row.device_ns for row in rows))
    last = mean_step.per_step(sum(row.last_ns for row in rows))
    if mean_step.device is None or not rows or mean_step.share(copied) < least_share:
        return None
    joins = mean_step.per_step(sum(row.joins for row in rows))
    return Advice(
        title="A tensor grows by concatenation, and is copied each time",
        because=f"torch.cat runs {often(joins, 'time')} on a tensor that gets longer. The copies take "
        f"{units.duration(copied)}, {units.share(mean_step.share(copied))} of the step; the last one alone, "
        f"which has everything, takes {units.duration(last)}.",
        saving=Saving(device_ns=(copied - last, copied)),
        certainty="likely",
        fix=_FIX,
        check="stepscope show growing_joins: no rows.",
        evidence={
            "joins_per_step": joins,
            "copied_ns": round(copied),
            "copied_share": mean_step.share(copied),
            "last_ns": round(last),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.COPY)}),
        locations=places_of((op for op in step_ops if op.name == "aten::cat"), "torch.cat call"),
    )
