"""A batch is put together from hundreds of small tensors."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.many_joins import ManyJoins
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings._joins import joined_share
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["stacked_tensors"]

_LEAST = 0.85
"""Of the host's time in these calls: an index that does the same costs some."""
_FIX = fix_of(
    'memory = torch.empty(entries, width, device="cuda")    # one tensor for all entries, written in place',
    'batch = memory[torch.randint(entries, (batch_size,), device="cuda")]    # one call, no list',
)


@rule(category=Category.HOST)
def stacked_tensors(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    many_joins: Table[ManyJoins],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """A batch is put together from hundreds of tensors on the GPU, by torch.stack or torch.cat.

    Gain, if they lie in one tensor from the beginning, of which one index takes a batch:

    - at most: the time of these calls on the host, that of Python between the operator before and each of
      them, in which the list is made, and all of their copies.
    - at least: 85 % of their part of the host's time.
    """
    most = joined_share(mean_step, step_ops, many_joins)
    if not most:
        return None
    host_ns = mean_step.per_step(sum(row.host_ns for row in many_joins))
    before_ns = mean_step.per_step(sum(row.before_ns for row in many_joins))
    device_ns = min(mean_step.per_step(sum(row.device_ns for row in many_joins)), mean_step.busy_ns)
    least = _LEAST * min(1.0, mean_step.share(host_ns))
    saving = fewer_calls(mean_step, (least, most), (0.0, device_ns))
    if mean_step.gain(saving).high_share < least_share:
        return None
    calls = mean_step.per_step(sum(row.calls for row in many_joins))
    each = sum(row.tensors for row in many_joins) / sum(row.calls for row in many_joins)
    return Advice(
        title="A batch is put together from very many small tensors",
        because=f"{often(calls, 'call')} of {_names(many_joins)} join at least {units.count(round(each))} "
        f"tensors each, which takes {units.duration(host_ns)} of the host's time. Before them, Python takes "
        f"{units.duration(before_ns)} to make the lists.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show many_joins: nothing is listed.",
        evidence={
            "calls_per_step": calls,
            "tensors_per_call": each,
            "host_ns": round(host_ns),
            "before_ns": round(before_ns),
        },
        claims=frozenset({Claim(Time.STARVED)}),
        locations=locations_of(
            (row.user_frame, f"{row.name}, {often(mean_step.per_step(row.calls), 'call')}", (row.name,))
            for row in many_joins
        ),
    )


def _names(many_joins: Table[ManyJoins]) -> str:
    return " and ".join(sorted({row.name.replace("aten::", "torch.") for row in many_joins}))
