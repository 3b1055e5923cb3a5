"""A rank does more than the others, and they wait for it."""

from __future__ import annotations

from stepscope.findings import Advice, Category, rule
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import claims_of, late_ranks
from stepscope.tables import Table

__all__ = ["straggling_rank"]

_SAID = {
    "more work": ("does more work than the others", "has more to compute or to copy than the median rank"),
    "memory": (
        "waits for memory of the driver",
        "allocates or frees memory of the driver more than the others",
    ),
    "compiling": (
        "compiles while the others wait",
        "compiles, tunes or captures graphs more than the others",
    ),
    "other": ("is late", "is late for a reason that its profile does not tell"),
}
_FIXES: dict[str, tuple[FixLine | str, ...]] = {
    "more work": (
        "sampler = DistributedSampler(dataset, drop_last=True)    # as many samples on every rank",
        "batches = sorted(samples, key=len)    # of one length in a step, or packed to a number of tokens",
        "# work of one rank alone (evaluation, logging, metrics): less often, or in a thread of its own",
    ),
    "memory": (
        line(
            Change.ALLOCATOR,
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True    # and a smaller batch on that rank",
        ),
    ),
    "compiling": (
        line(
            Change.DYNAMIC_SHAPES,
            "model = torch.compile(model, dynamic=True)    # its inputs change their shapes, others' do not",
        ),
    ),
    "other": ("stepscope report RUN --rank {rank}    # what its own profile says",),
}


@rule(category=Category.COMMUNICATION, yields_to=("expert_imbalance",))
def straggling_rank(
    run_step: RunMeanStep, stragglers: Table[Straggler], *, least_share: float = 0.02
) -> Advice | None:
    """A rank has more work, allocations or compiling than the others, and all of them wait for it.

    Causes that have a rule of their own are left to those: input, a slower device, the host, the collector.

    Gain: all ranks are played together, with the late rank's time for the cause brought down to that of the
    median rank.

    - at most: what the run's step loses if that is done in every step by itself, with 1/5 more for what a
      simulation may miss.
    - at least: what it loses if only what the rank spends more over all steps goes, less 15 % and less the
      error of the play without a change.
    - More work takes more launches, too: at most, what the rank's host is late for goes with it.
    - If the play does not reproduce the run: at least nothing, and at most the lateness.
    """
    found = [late for cause in _SAID if (late := late_ranks(stragglers, cause, run_step, least_share))]
    late = max(found, key=lambda one: (one.saving.waited_ns[1], one.worst.cost_ns), default=None)
    if late is None:
        return None
    title, what = _SAID[late.cause]
    rank = late.worst.rank
    fixes = [one.format(rank=rank) if isinstance(one, str) else one for one in _FIXES[late.cause]]
    return Advice(
        title=f"Rank {rank} {title}",
        because=late.story(run_step, what),
        saving=late.saving,
        certainty="possible" if late.cause == "other" else "likely",
        fix=fix_of(*fixes),
        check=f"stepscope show stragglers RUN: no row of rank {rank} with the cause {late.cause}.",
        evidence=late.evidence,
        claims=claims_of(late.cause),
        locations=late.locations,
    )
