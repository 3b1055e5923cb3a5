"""Backward runs several times through one forward pass."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.repeated_backwards import RepeatedBackwards
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._op_costs import places_of
from stepscope.findings._waits import NODE
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["repeated_backwards"]

_FIX = fix_of(
    "(depth_loss + 0.5 * class_loss).backward()    # one pass for the sum, to the same gradients",
)


@rule(category=Category.HOST)
def repeated_backwards(
    mean_step: MeanStep,
    repeated_backwards: Table[RepeatedBackwards],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Several losses go backward one by one through the layers that they share.

    Gain, with one pass for the sum of the losses:

    - at most: the work on the GPU of all runs of a node after the first, and 1.3 times their part of the
      host's time.
    - at least: the same work, and 85 % of their part of the host's time.
    """
    row = next(iter(repeated_backwards), None)
    if row is None or row.steps < mean_step.steps - 1:
        return None
    host_ns, device_ns = mean_step.per_step(row.host_ns), mean_step.per_step(row.device_ns)
    saving = saved_by_dropping_stretches(mean_step, host_ns, device_ns)
    if mean_step.gain(saving).high_share < least_share:
        return None
    nodes = [op for op in step_ops if op.within is None and (op.name or "").startswith(NODE)]
    return Advice(
        title=f"Backward runs {row.passes} times through one forward pass",
        because=f"For {units.count(round(row.operators / row.steps))} operators of a forward pass autograd "
        f"runs {units.count(round(row.runs / row.steps))} nodes before the weights are updated: several "
        "losses go backward one by one through layers that they share. The runs after the first take "
        f"{units.duration(host_ns)} of a step on the host and {units.duration(device_ns)} on the GPU.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show repeated_backwards: no rows.",
        evidence={
            "passes": row.passes,
            "operators_per_step": row.operators / row.steps,
            "runs_per_step": row.runs / row.steps,
            "host_ns": round(host_ns),
            "device_ns": round(device_ns),
        },
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED)}),
        locations=places_of(nodes),
    )
