"""Transfers that nothing runs beside, on any rank."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._overlapping import bucket_cap_mb
from stepscope.findings._phrases import times
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.runs.analyses.collective_ranks import CollectiveRank
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._exposed import ExposedKind, exposed_kinds
from stepscope.runs.rules._late import WAITING
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["exposed_transfer"]

_ALWAYS_ALONE = 0.95
_IN_A_ROW = 0.5
_GATHER = """\
fully_shard(block, reshard_after_forward=False)    # if memory allows: fewer all-gathers
block.set_modules_to_forward_prefetch([next_block])    # FSDP2; FSDP1: forward_prefetch=True"""
_SCATTER = """\
block.set_modules_to_backward_prefetch([block_before])    # FSDP2; FSDP1: BackwardPrefetch.BACKWARD_PRE
model.set_requires_gradient_sync(is_last_micro_step)    # with gradient accumulation"""
_REDUCE = (
    "model = DistributedDataParallel("
    "model, device_ids=[local_rank], bucket_cap_mb={cap}, gradient_as_bucket_view=True)"
)
_ASYNC = """\
work = dist.{call}(…, async_op=True)    # on a stream of its own; torch waits for it where you say
...    # compute that does not need it
work.wait()"""
_CALLS = {"all-to-all": "all_to_all_single", "broadcast": "broadcast", "send-receive": "isend"}


@rule(category=Category.COMMUNICATION, yields_to=("gloo_for_device",))
def exposed_transfer(
    run_step: RunMeanStep,
    collective_ranks: Table[CollectiveRank],
    collectives: Table[Collective],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Transfers run while the ranks do nothing else: all have arrived, and nothing overlaps.

    Waiting for late ranks is not counted here; other findings are about that.

    Gain: all ranks are played together.

    - at most: transfers take no time, as if all of them ran beside compute; and no more than what is exposed.
    - at least: nothing. Whether there is compute to hide them behind depends on the model, and buckets of
      other sizes can be better or worse.
    """
    kinds = exposed_kinds(run_step, collective_ranks, collectives)
    exposed = sum(one.exposed_ns for one in kinds)
    if not kinds or run_step.share(exposed) < least_share:
        return None
    saving = run_step.saving([RankChange(None, "transfer")], exposed)
    main = kinds[0]
    return Advice(
        title="Transfers do not overlap with compute on any rank",
        because="When all ranks have arrived, they still do nothing but transfer for "
        f"{units.duration(exposed)} of a step ({units.share(run_step.share(exposed))}), mostly in "
        f"{times(main.calls, main.kind)}"
        + (f" of {units.size(main.bytes)}" if main.bytes else "")
        + f": {units.share(main.exposed_share)} of their transfer time has nothing beside it.{_why(main)}",
        saving=Saving(waited_ns=(0.0, saving.waited_ns[1])),
        certainty="likely",
        fix=_fix(main),
        check="stepscope show rank_steps RUN --by rank: exposed_transfer_ns falls.",
        evidence={
            "exposed_transfer_ns": round(exposed),
            "exposed_share": run_step.share(exposed),
            "collective": main.kind,
            "collectives_per_step": main.calls,
            "collective_bytes": main.bytes,
            "collective_exposed_ns": round(main.exposed_ns),
            "in_a_row_share": main.in_a_row,
        },
        claims=WAITING,
    )


def _why(main: ExposedKind) -> str:
    if main.kind in ("all-gather", "reduce-scatter") and main.in_a_row >= _IN_A_ROW:
        return " They follow one another without compute between them: the next shards are not fetched ahead."
    if main.exposed_share >= _ALWAYS_ALONE:
        return " They run on the stream of the kernels, or the next operation waits for them at once."
    return ""


def _fix(main: ExposedKind) -> Fix:
    if main.kind == "all-gather":
        return fix_of(line(Change.SHARDS, _GATHER))
    if main.kind == "reduce-scatter":
        return fix_of(line(Change.SHARDS, _SCATTER))
    if main.kind == "all-reduce":
        cap = bucket_cap_mb(main.calls * (main.bytes or 0))
        return fix_of(
            line(Change.BUCKETS, _REDUCE.format(cap=cap), megabytes=cap), _ASYNC.format(call="all_reduce")
        )
    return fix_of(_ASYNC.format(call=_CALLS.get(main.kind, "all_reduce")))
