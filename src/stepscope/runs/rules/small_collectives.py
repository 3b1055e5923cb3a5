"""Many collectives that are too small for the link."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import times
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.collective_ranks import CollectiveRank
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._exposed import exposed_kinds
from stepscope.runs.rules._late import WAITING
from stepscope.tables import Table

__all__ = ["small_collectives"]

_COALESCE = """\
with torch.distributed._coalescing_manager(group, device=device, async_ops=True) as work:
    for tensor in tensors:
        dist.all_reduce(tensor)    # one launch for all of them
work.wait()"""
_BUCKETS = "model = DistributedDataParallel(model, device_ids=[local_rank], bucket_cap_mb=25)    # default 25"


@rule(category=Category.COMMUNICATION)
def small_collectives(
    run_step: RunMeanStep,
    collective_ranks: Table[CollectiveRank],
    collectives: Table[Collective],
    *,
    least_calls: int = 16,
    least_share: float = 0.02,
) -> Advice | None:
    """A step has many collectives of less than 1 MiB, which cost latency rather than transfer.

    Waiting for late ranks is not counted: only what they take when all have arrived, with nothing beside it.

    Gain:

    - at most: what is exposed of them, except one.
    - at least: nothing. Whether they can be put together depends on what is between them.
    """
    kinds = [one for one in exposed_kinds(run_step, collective_ranks, collectives) if one.small_calls]
    main = max(kinds, key=lambda one: one.small_exposed_ns, default=None)
    if main is None or main.small_calls < least_calls:
        return None
    most = main.small_exposed_ns * (1 - 1 / main.small_calls)
    if run_step.share(most) < least_share:
        return None
    return Advice(
        title=f"Many small {main.kind}s cost mostly latency",
        because=f"A step has {times(main.small_calls, main.kind)} of less than 1 MiB. After the last rank "
        f"has arrived they take {units.duration(main.small_exposed_ns)} of it with nothing beside them, "
        f"{units.share(run_step.share(main.small_exposed_ns))} of the step: "
        f"{units.duration(main.small_exposed_ns / main.small_calls)} each.",
        saving=Saving(waited_ns=(0.0, most)),
        certainty="likely",
        fix=fix_of(line(Change.BUCKETS, _BUCKETS, megabytes=25), _COALESCE)
        if main.kind == "all-reduce"
        else fix_of(_COALESCE),
        check="stepscope show collectives RUN --by size: fewer and larger ones.",
        evidence={
            "collective": main.kind,
            "small_per_step": main.small_calls,
            "exposed_transfer_ns": round(main.small_exposed_ns),
        },
        claims=WAITING,
    )
