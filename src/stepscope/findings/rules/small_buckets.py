"""Gradients reduced in many small pieces."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.breakdowns import Breakdown
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._communication import ACCUMULATES, exposed_of, kind_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["small_buckets"]

_BUCKETS = (
    "model = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb=100)    # default 25"
)
_BY_HAND = """\
model = DistributedDataParallel(model, device_ids=[local_rank])    # reduces in buckets, during backward
flat = torch.cat([p.grad.flatten() for p in model.parameters()])    # or by hand: one all-reduce for all
dist.all_reduce(flat)"""


@rule(category=Category.COMMUNICATION)
def small_buckets(  # noqa: PLR0913  # one parameter for each table and threshold
    mean_step: MeanStep,
    breakdowns: Table[Breakdown],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_calls: int = 16,
    most_mean_ns: int = 100_000,
    least_share: float = 0.02,
) -> Advice | None:
    """Gradients are all-reduced in many small pieces, each of which costs more latency than transfer.

    Gain: an all-reduce that short is mostly latency, and so is its launch. Buckets twice as large halve the
    launches: at the least half of the device's waiting for them. At the most all launches but one go, and of
    the exposed communication all but one such all-reduce; but larger buckets fill later and overlap less, so
    of that nothing at the least.
    """
    rows = [row for row in step_ops if kind_of(row.name) == "all-reduce"]
    calls = mean_step.per_step(sum(row.calls for row in rows))
    mean_ns = mean_step.per_step(sum(row.device_ns for row in rows)) / calls if calls else 0.0
    trains = any(row.phase == "backward" for row in step_ops)
    if not trains or calls < least_calls or not 0 < mean_ns <= most_mean_ns:
        return None
    exposed = exposed_of(breakdowns, kernel_families, mean_step)
    device = max(0.0, exposed.device_ns - mean_ns)
    starved = mean_step.with_latency(mean_step.per_step(sum(row.starved_ns for row in rows)))
    if mean_step.share(device + starved) < least_share:
        return None
    by_hand = sum(row.calls for row in rows if row.within != ACCUMULATES)
    return Advice(
        title="Gradients are all-reduced in many small pieces",
        because=f"{units.tally(calls)} all-reduces a step of {units.duration(mean_ns)} each; "
        f"{units.duration(exposed.device_ns)} of communication had no compute beside it, and the GPU waited "
        f"{units.duration(starved)} for their launches.",
        saving=Saving(starved_ns=(0.5 * starved, starved * (1 - 1 / calls)), device_ns=(0.0, device)),
        certainty="likely",
        fix=_BY_HAND if by_hand > calls * mean_step.steps / 2 else _BUCKETS,
        check="stepscope show kernels: fewer and longer all-reduces; exposed_communication_ns of stepscope "
        "show devices falls.",
        evidence={
            "all_reduces_per_step": calls,
            "all_reduce_mean_ns": mean_ns,
            "exposed_communication_ns": round(exposed.device_ns),
            "starved_ns": round(starved),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
        locations=locations_of(
            (row.user_frame, f"~{units.tally(row.per_step)} all-reduces a step")
            for row in sorted(rows, key=lambda row: -row.calls)
        ),
    )
