"""How to overlap collectives with compute, by their kind and by who asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepscope.findings._communication import ACCUMULATES, kind_of
from stepscope.findings.fixes import Change, Fix, FixLine, fix_of, line
from stepscope.patterns import late_pattern

if TYPE_CHECKING:
    from stepscope.analyses.collective_kinds import CollectiveKind
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep

__all__ = ["bucket_cap_mb", "overlap_fix"]

DEFAULT_CAP_MB = 25
"""DistributedDataParallel's own size of a bucket; the first one has 1 MB."""
KEPT_BUCKETS = 4
"""Fewer buckets hardly overlap: the last one is filled when backward ends, and all of it is exposed."""
FEW_BUCKETS = 3
LEAST_MB = 4
"""Pieces smaller than this are mostly latency."""
MANY_LAYERS = 8
"""From this many all-reduces in forward on they are those of layers, not of a loss or a metric."""

# Embedding tables that are divided among ranks: FBGEMM's operators, TorchRec's collectives.
_EMBEDDINGS = late_pattern(r"fbgemm::|All2All_(Pooled|Seq)|.*torchrec")
_NO_SYNC = (
    "with model.no_sync():    # with gradient accumulation, in all micro-steps but the last\n"
    "    loss.backward()"
)
_COMPRESS = (
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)    # half the bytes;"
    " torch.distributed.algorithms.ddp_comm_hooks"
)
_SHARDS = {
    "all-gather": "fully_shard(block, reshard_after_forward=False)    # if memory allows: fewer all-gathers\n"
    "block.set_modules_to_forward_prefetch([next_block])    # FSDP2; FSDP1: forward_prefetch=True",
    "reduce-scatter": "block.set_modules_to_backward_prefetch([block_before])    # FSDP2\n"
    "model.set_requires_gradient_sync(is_last_micro_step)    # with gradient accumulation",
}
_TABLES = """\
pipeline = TrainPipelineSparseDist(model, optimizer, device)    # torchrec.distributed.train_pipeline
loss, out = pipeline.progress(batches)    # sends the inputs of the next batch during this one"""
_EXPERTS = """\
work = dist.all_to_all_single(out, tokens, async_op=True)    # for the next half of the batch
...    # meanwhile: shared experts, attention, or the experts of the other half
work.wait()    # TorchRec's embeddings: TrainPipelineSparseDist"""
_STAGES = """\
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4 * pipeline_size)    # or ScheduleZBVZeroBubble
dist.batch_isend_irecv([dist.P2POp(dist.isend, x, peer)])    # your own stages: wait for it later"""
_BUFFERS = "model = DistributedDataParallel(model, device_ids=[local_rank], broadcast_buffers=False)"
_TENSORS = """\
parallelize_module(block, mesh, plan)    # plan with SequenceParallel(): half of the bytes overlap better
torch._inductor.config._micro_pipeline_tp = True    # async tensor parallelism, with torch.compile(block)
enable_symm_mem_for_group(mesh.get_group().group_name)    # torch.distributed._symmetric_memory"""
_SERVING = """\
# fewer GPUs for each copy of the model, and more copies:
vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 4
python -m sglang.launch_server --model MODEL --tp 2 --dp 4"""
_ASYNC = """\
work = dist.all_gather_into_tensor(out, tensor, async_op=True)    # or any other collective
...    # compute that does not need it
work.wait()"""
_ANY = "work = dist.all_reduce(tensor, async_op=True)\n...    # compute that does not need it\nwork.wait()"


def overlap_fix(
    kind: str | None,
    rows: Sequence[CollectiveKind],
    step_ops: Iterable[StepOp],
    mean_step: MeanStep,
) -> Fix:
    """What to type for collectives of that kind, which `rows` are: for gradients, shards, experts, stages."""
    ops = list(step_ops)
    trains = any(op.phase in ("backward", "optimizer") for op in ops)
    if ops and not trains and kind in ("all-reduce", "all-gather", "reduce-scatter"):
        return fix_of(line(Change.FEWER_RANKS, _SERVING))
    if kind in _SHARDS:
        return fix_of(line(Change.SHARDS, _SHARDS[kind]))
    if kind == "all-to-all":
        return fix_of(_TABLES if any(_EMBEDDINGS.match(op.name or "") for op in ops) else _EXPERTS)
    if kind in ("send-receive", "broadcast"):
        return fix_of(_STAGES if kind == "send-receive" else line(Change.BROADCASTS, _BUFFERS))
    if kind not in ("all-reduce", None):
        return fix_of(_ASYNC)
    reduces = [op for op in ops if kind_of(op.name) == "all-reduce"]
    if any(op.within == ACCUMULATES for op in reduces):
        return _of_gradients(rows, ops, mean_step)
    if sum(op.per_step for op in reduces if op.phase == "forward") >= MANY_LAYERS:
        return fix_of(_TENSORS)
    return fix_of(_ANY)


def _of_gradients(rows: Sequence[CollectiveKind], ops: Sequence[StepOp], mean_step: MeanStep) -> Fix:
    """Buckets of another size only if there are too few or too many; no copies; fewer bytes."""
    # Gradients that are not views of the buckets are copied out of them after every all-reduce.
    copied = any(op.name and op.name.endswith("reducer::copy_bucket_to_grad") for op in ops)
    options = ", gradient_as_bucket_view=True" if copied else ""
    calls = mean_step.per_step(sum(row.calls for row in rows))
    total = mean_step.per_step(sum(row.bytes or 0 for row in rows))
    why, cap = "", DEFAULT_CAP_MB
    if calls <= FEW_BUCKETS and total >= 2 * LEAST_MB * 1e6:
        cap = max(LEAST_MB, round(total / 1e6 / (2 * KEPT_BUCKETS)))
        options += f", bucket_cap_mb={cap}"
        why = f"    # smaller buckets start earlier: now {round(calls)} for {total / 1e6:.0f} MB"
    lines: list[FixLine | str] = []
    if options:
        wrapped = f"model = DistributedDataParallel(model, device_ids=[local_rank]{options}){why}"
        lines.append(line(Change.BUCKETS, wrapped, megabytes=cap))
    if any(row.dtype == "fp32" for row in rows):
        lines.append(_COMPRESS)
    return fix_of(*lines, line(Change.NO_SYNC, _NO_SYNC))


def bucket_cap_mb(total_bytes: float | None) -> int:
    """The largest size of a bucket that leaves several, at most the default."""
    if not total_bytes:
        return DEFAULT_CAP_MB
    return max(1, min(DEFAULT_CAP_MB, round(total_bytes / 1e6 / KEPT_BUCKETS)))
