"""One rank saves a checkpoint while the others wait."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.patterns import late_pattern
from stepscope.runs.analyses.rank_steps import RankStep
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import claims_of, late_ranks
from stepscope.runs.rules._seldom import long_steps, seldom_late
from stepscope.tables import Table

__all__ = ["lone_checkpoint"]

_SAVES = late_pattern(r"save|checkpoint|state_dict|serializ|pickle", re.IGNORECASE)
_ASYNC = """\
future = dcp.async_save(state_dict, checkpoint_id=path)    # torch.distributed.checkpoint: every rank its part
# waits for the copy to the host alone; the disk is written beside the next steps"""
_THREAD = "# evaluation or logging by one rank: in a thread or process of its own, or on all ranks in parts"


@rule(category=Category.HOST)
def lone_checkpoint(
    run_step: RunMeanStep,
    stragglers: Table[Straggler],
    rank_steps: Table[RankStep],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """One rank is held up in a few steps, as when it saves a checkpoint, and all others wait for it.

    The host of one rank, mostly rank 0, spends far longer than usual in fewer than half of its steps.

    Gain: all ranks are played together without what this rank does more than the median rank.

    - at most: what the run's steps lose by that, on average.
    - at least: nothing. It does not come in every step, and a profile of a few steps shows it too often or
      too seldom.
    """
    found = [
        late
        for cause in ("host", "other", "more work")
        if (late := late_ranks(stragglers, cause, run_step, least_share))
        and seldom_late(rank_steps, late.worst.rank)
    ]
    late = max(found, key=lambda one: one.saving.waited_ns[1], default=None)
    if late is None:
        return None
    worst = late.worst
    steps = long_steps(rank_steps, worst.rank)
    longest = max(ns for _, ns in steps)
    saves = bool(_SAVES.search(worst.place or ""))
    return Advice(
        title=f"The others wait while rank {worst.rank} saves a checkpoint"
        if saves
        else f"Rank {worst.rank} holds up all others in a few steps",
        because=f"In {units.counted(len(steps), 'step')} of {run_step.steps} rank {worst.rank} spends up to "
        f"{units.duration(longest)} more than usual on the host, which no other rank does, and the others "
        f"wait {units.duration(worst.cost_ns)} for it in the mean step."
        + ("" if saves else " A checkpoint, an evaluation or logging by one rank looks like this."),
        saving=Saving(waited_ns=(0.0, late.saving.waited_ns[1])),
        certainty="likely" if saves else "possible",
        fix=fix_of(line(Change.SAVE_LESS, _ASYNC), _THREAD),
        check=f"stepscope show rank_steps RUN: host_ns of rank {worst.rank} alike in all steps.",
        evidence={
            **late.evidence,
            "long_steps": len(steps),
            "longest_ns": round(longest),
            "steps_numbers": ",".join(str(row.step) for row, _ in steps[:10]),
        },
        claims=claims_of(late.cause),
        locations=late.locations,
    )
