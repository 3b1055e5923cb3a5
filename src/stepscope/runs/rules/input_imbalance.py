"""Some ranks wait longer for their data than others."""

from __future__ import annotations

from stepscope.findings import Advice, Category, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import claims_of, late_ranks
from stepscope.tables import Table

__all__ = ["input_imbalance"]

_WORKERS = (
    "loader = DataLoader(…, num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True)"
)


@rule(category=Category.INPUT)
def input_imbalance(
    run_step: RunMeanStep, stragglers: Table[Straggler], *, least_share: float = 0.02
) -> Advice | None:
    """A rank waits longer for its data than the others, and all of them wait for it.

    A loader that is slow on all ranks alike makes no rank late: the report on one rank tells of that.

    Gain: all ranks are played together, with the late rank's wait for data brought down to that of the median
    rank.

    - at most: what the run's step loses if that is done in every step by itself, with 1/5 more.
    - at least: what it loses if only what the rank waits longer over all steps goes, less 15 % and less the
      error of the play without a change.
    - If the play does not reproduce the run: at least nothing, and at most the lateness.
    """
    late = late_ranks(stragglers, "input", run_step, least_share)
    if late is None:
        return None
    rank = late.worst.rank
    machine = late.worst.host or "its machine"
    where = f"df -h; iostat -x 5    # on {machine}: its disk or its link, files of its shard"
    return Advice(
        title=f"Rank {rank} waits for its data, and the others for it",
        because=late.story(run_step, "waits for its data longer than the median rank"),
        saving=late.saving,
        certainty="likely",
        fix=fix_of(line(Change.WORKERS, _WORKERS, workers=8), line(Change.MACHINE, where)),
        check=f"stepscope show stragglers RUN: no row of rank {rank} with the cause input; stepscope show "
        "rank_steps RUN --by rank: input_ns alike on all ranks.",
        evidence=late.evidence,
        claims=claims_of(late.cause),
        locations=late.locations,
    )
