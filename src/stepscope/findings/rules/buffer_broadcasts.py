"""DistributedDataParallel sends the buffers of the model to all ranks in every forward pass."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import kind_of
from stepscope.findings._op_costs import cost_of, part_of
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["buffer_broadcasts"]

BUFFERS_OF_A_NORM = 3
"""Running mean, running variance, and the number of batches."""
_RANGE = "DistributedDataParallel.forward"
_NORM = late_pattern(r"aten::batch_norm")
_FLATTENED = "aten::flatten_dense_tensors"
_FIX = """\
model = DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)    # if ranks must share their statistics"""


@rule(category=Category.COMMUNICATION)
def buffer_broadcasts(
    mean_step: MeanStep,
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """DistributedDataParallel broadcasts the model's buffers from rank 0 in every forward pass.

    It joins them, broadcasts what it has joined, and copies every buffer back by itself. In training batch
    norms do not use their buffers, so this is only worth something if they are saved from another rank.

    Gain:

    - at most: joining, broadcasting and copying, and the GPU's waiting for their launches.
    - at least: half of that waiting, because other launches move into the gap.
    """
    forwards = sum(row.calls for row in annotations if row.name == _RANGE)
    sent = [row for row in step_ops if row.phase == "forward" and kind_of(row.name) == "broadcast"]
    if not forwards or not sent:
        return None
    joined = [row for row in step_ops if row.phase == "forward" and row.name == _FLATTENED]
    norms = sum(
        row.per_step for row in step_ops if row.phase == "forward" and _NORM.fullmatch(row.name or "")
    )
    copies = [
        row for row in step_ops if row.phase == "forward" and row.within is None and row.name == "aten::copy_"
    ]
    copied = sum(row.per_step for row in copies)
    # Other copies of the program are not told apart, except by how many buffers there are.
    part = min(1.0, BUFFERS_OF_A_NORM * norms / copied) if copied else 0.0
    back = [part_of(row, part) for row in copies]
    work = cost_of([*sent, *joined, *back], mean_step)
    starved, device = mean_step.with_latency(work.starved_ns), min(work.device_ns, mean_step.busy_ns)
    saving = Saving(starved_ns=(0.5 * starved, starved), device_ns=(0.0, device))
    if mean_step.gain(saving).high_share < least_share:
        return None
    calls = sum(row.per_step for row in sent)
    return Advice(
        title="Buffers are broadcast in every forward pass",
        because=f"DistributedDataParallel sends the buffers of rank 0 to all: {often(calls, 'broadcast')}"
        + (f", and {times(part * copied, 'copy')} back into the buffers, one by one" if part else "")
        + f". That takes {units.duration(device)} of GPU time."
        + if_idle(starved, "The GPU waits {} for the launches."),
        saving=saving,
        certainty="likely",
        fix=fix_of(line(Change.BROADCASTS, _FIX)),
        check="stepscope show collective_kinds: no broadcasts.",
        evidence={
            "broadcasts_per_step": calls,
            "copies_per_step": part * copied,
            "starved_ns": round(starved),
            "device_ns": round(device),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.WAITED, Part.COMMUNICATION)}),
    )
