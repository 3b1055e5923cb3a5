"""Gradients are all-reduced in many small pieces."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._communication import ACCUMULATES, exposed_of, kind_of
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["small_buckets"]

_BUCKETS = (
    "model = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb=100)    # default 25"
)
_BY_HAND = """\
model = DistributedDataParallel(model, device_ids=[local_rank])    # reduces in buckets, during backward
flat = torch.cat([p.grad.flatten() for p in model.parameters()])    # or by hand: one all-reduce
dist.all_reduce(flat)"""


@rule(category=Category.COMMUNICATION)
def small_buckets(  # noqa: PLR0913  # one parameter for each table and threshold
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_calls: int = 16,
    most_mean_ns: int = 100_000,
    least_share: float = 0.02,
) -> Advice | None:
    """Gradients are all-reduced in many small pieces, which cost more latency than transfer.

    Gain:

    - at most: all launches except one, and all exposed communication except one such all-reduce.
    - at least: half of the GPU's waiting for the launches, because buckets twice as large halve them. None of
      the exposed communication, because larger buckets fill later and overlap less.
    """
    rows = [row for row in step_ops if kind_of(row.name) == "all-reduce"]
    calls = mean_step.per_step(sum(row.calls for row in rows))
    mean_ns = mean_step.per_step(sum(row.device_ns for row in rows)) / calls if calls else 0.0
    trains = any(row.phase == "backward" for row in step_ops)
    if not trains or calls < least_calls or not 0 < mean_ns <= most_mean_ns:
        return None
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    device = max(0.0, exposed.device_ns - mean_ns)
    starved = mean_step.with_latency(mean_step.per_step(sum(row.starved_ns for row in rows)))
    if mean_step.share(device + starved) < least_share:
        return None
    by_hand = sum(row.calls for row in rows if row.within != ACCUMULATES)
    return Advice(
        title="Gradients are all-reduced in many small pieces",
        because=f"A step has {times(calls, 'all-reduce')} of {units.duration(mean_ns)} each."
        + (f" {units.duration(exposed.device_ns)} of communication is exposed." if exposed.device_ns else "")
        + if_idle(starved, "The GPU waits {} for the launches."),
        saving=Saving(starved_ns=(0.5 * starved, starved * (1 - 1 / calls)), device_ns=(0.0, device)),
        certainty="likely",
        fix=_BY_HAND if by_hand > calls * mean_step.steps / 2 else _BUCKETS,
        check="stepscope show kernels: fewer and longer all-reduces; devices: less exposed_communication_ns.",
        evidence={
            "all_reduces_per_step": calls,
            "all_reduce_mean_ns": mean_ns,
            "exposed_communication_ns": round(exposed.device_ns),
            "starved_ns": round(starved),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
        locations=locations_of(
            (row.user_frame, often(row.per_step, "all-reduce"))
            for row in sorted(rows, key=lambda row: -row.calls)
        ),
    )
