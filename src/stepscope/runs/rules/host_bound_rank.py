"""The host of one rank is slower than those of the others."""

from __future__ import annotations

from stepscope.findings import Advice, Category, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.rank_steps import RankStep
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import claims_of, late_ranks
from stepscope.runs.rules._seldom import seldom_late
from stepscope.tables import Table

__all__ = ["host_bound_rank"]

_PYTHON = (
    "# what that rank alone does between operators (logging, metrics, a progress bar):"
    " less often, or in a thread"
)


@rule(category=Category.HOST)
def host_bound_rank(
    run_step: RunMeanStep,
    stragglers: Table[Straggler],
    rank_steps: Table[RankStep],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """The host of one rank launches later than those of the others, and all of them wait for it.

    Python of its own, too few cores, or a machine that other programs use. A rank that is held up in a few
    steps only is left to lone-checkpoint.

    Gain: all ranks are played together, with the time in which the late rank's device waits for its host
    brought down to that of the median rank.

    - at most: what the run's step loses if that is done in every step by itself, with 1/5 more.
    - at least: what it loses if only what the rank spends more over all steps goes, less 15 % and less the
      error of the play without a change.
    - If the play does not reproduce the run: at least nothing, and at most the lateness.
    """
    late = late_ranks(stragglers, "host", run_step, least_share)
    if late is None or seldom_late(rank_steps, late.worst.rank):
        return None
    rank, host = late.worst.rank, late.worst.host
    look = (
        f"{f'ssh {host} ' if host else ''}top -H    # other programs, too few cores for the loader's workers"
    )
    bind = "torchrun --nproc-per-node … train.py    # with numactl or taskset: each rank next to its device"
    return Advice(
        title=f"The host of rank {rank} is late, and the others wait",
        because=late.story(
            run_step, "spends more time in Python, operators and launches than the median rank"
        ),
        saving=late.saving,
        certainty="likely",
        fix=fix_of(_PYTHON, line(Change.MACHINE, look), line(Change.MACHINE, bind)),
        check=f"stepscope show stragglers RUN: no row of rank {rank} with the cause host.",
        evidence=late.evidence,
        claims=claims_of(late.cause),
        locations=late.locations,
    )
