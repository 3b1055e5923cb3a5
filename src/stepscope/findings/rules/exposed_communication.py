"""Collectives that do not overlap with compute."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.critical_path_sides import CriticalPathSides
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import ACCUMULATES, exposed_of, kind_of, kinds_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["exposed_communication"]

_DDP = "DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb=100{views})"
_NO_SYNC = (
    "with model.no_sync():    # in all micro-steps but the last: fewer all-reduces\n    loss.backward()"
)
_BY_KIND = {
    "all-gather": "fully_shard(block, reshard_after_forward=False)    # if memory allows: fewer all-gathers\n"
    "block.set_modules_to_forward_prefetch([next_block])    # FSDP2; FSDP1: forward_prefetch=True",
    "reduce-scatter": "block.set_modules_to_backward_prefetch([block_before])    # FSDP2\n"
    "model.set_requires_gradient_sync(is_last_micro_step)    # with gradient accumulation",
    "all-to-all": "work = dist.all_to_all_single(out, batch, async_op=True)    # for the next batch\n"
    "...    # compute on this one\n"
    "work.wait()    # TorchRec does this: TrainPipelineSparseDist",
}
_ANY = "work = dist.all_reduce(tensor, async_op=True)\n...    # compute that does not need it\nwork.wait()"


@rule(category=Category.COMMUNICATION)
def exposed_communication(
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    critical_path_sides: Table[CriticalPathSides],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Collectives run while nothing computes.

    Gain:

    - at most: all exposed communication, because it can at best overlap with compute.
    - at least: nothing. One rank's profile does not tell transfer from waiting, and if another rank is slow,
      no change on this one helps.
    """
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    if mean_step.share(exposed.ns) < least_share:
        return None
    kinds = kinds_of(step_ops)
    on_path = mean_step.per_step(sum(row.communication_ns for row in critical_path_sides))
    on_path = min(on_path, exposed.ns)
    mostly = f" (mostly {kinds[0]})" if kinds else ""
    return Advice(
        title="Communication does not overlap with compute",
        because=f"For {units.duration(exposed.ns)} of a step ({units.share(mean_step.share(exposed.ns))}) "
        f"only collectives run{mostly}, no other kernel and no copy. "
        f"{units.duration(on_path) if on_path else 'None'} of that is on the critical path. This is an upper "
        "bound: it includes waiting for other ranks, which only profiles of all ranks can show.",
        saving=Saving(device_ns=(0.0, exposed.device_ns), waited_ns=(0.0, exposed.host_ns)),
        certainty="likely",
        fix=_fix(kinds, step_ops),
        check="stepscope show devices: exposed_communication_ns falls, overlap_share rises (for gloo: "
        "communication_ns in stepscope show steps). Profile all ranks to see whether one is slow.",
        evidence={
            "exposed_communication_ns": round(exposed.ns),
            "exposed_share": mean_step.share(exposed.ns),
            "host_collectives_ns": round(exposed.host_ns),
            "on_critical_path_ns": round(on_path),
            "collective": kinds[0] if kinds else None,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )


def _fix(kinds: list[str], step_ops: Table[StepOp]) -> str:
    """What to type for gradients, for shards, and for the program's own collectives."""
    if kinds and kinds[0] in _BY_KIND:
        return _BY_KIND[kinds[0]]
    reduced = any(row.within == ACCUMULATES and kind_of(row.name) == "all-reduce" for row in step_ops)
    if not reduced:
        return _ANY
    # Gradients that are not views of the buckets are copied out of them after every all-reduce.
    copied = any(row.name and row.name.endswith("reducer::copy_bucket_to_grad") for row in step_ops)
    return f"model = {_DDP.format(views=', gradient_as_bucket_view=True' if copied else '')}\n{_NO_SYNC}"
