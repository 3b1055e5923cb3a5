"""Experts that get far more tokens than others."""

from __future__ import annotations

from collections import defaultdict

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.fixes import fix_of
from stepscope.runs.analyses.expert_loads import ExpertLoad
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import WAITING, named
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["expert_imbalance"]

_FIX = """\
loss = loss + 0.01 * balance_loss    # or a bias on the router's scores that follows the load, without a loss
capacity_factor = 1.25    # tokens above it go to the next expert
# place busy experts on different ranks, or two copies of the busiest ones"""


@rule(category=Category.COMMUNICATION)
def expert_imbalance(
    run_step: RunMeanStep,
    expert_loads: Table[ExpertLoad],
    *,
    least_imbalance: float = 1.25,
    least_share: float = 0.02,
) -> Advice | None:
    """Some ranks get more tokens for their experts than others, and the others wait for them.

    Gain: all ranks are played together.

    - at most: the computing of the ranks with more than the mean comes down to that of the median rank, and
      the all-to-alls with their largest part to the mean.
    - at least: half of what goes if only their computing comes down to the median rank's, over all steps,
      less 15 % and less the error of the play without a change: a router is seldom balanced wholly.
    """
    groups: dict[str, list[ExpertLoad]] = defaultdict(list)
    for row in expert_loads:
        groups[str(row.group)].append(row)
    loads = max(groups.values(), key=lambda rows: max(row.imbalance or 0.0 for row in rows), default=[])
    imbalance = max((row.imbalance or 0.0 for row in loads), default=0.0)
    if len(loads) < 2 or imbalance < least_imbalance:
        return None
    mean = sum(row.load_bytes or 0 for row in loads) / len(loads)
    busy = sorted(
        (row for row in loads if (row.load_bytes or 0) > mean), key=lambda row: -(row.load_bytes or 0)
    )
    if not busy:
        return None
    ranks = tuple(sorted(row.rank for row in busy))
    changes = [RankChange(ranks, "compute", like="median rank"), RankChange(None, "transfer", 1 / imbalance)]
    most = run_step.saving(changes).waited_ns[1]
    least = min(most, 0.5 * run_step.saving(changes[:1]).waited_ns[0])
    if run_step.share(most) < least_share:
        return None
    top = busy[0]
    return Advice(
        title=f"Experts of rank {top.rank} get {imbalance:.1f} times the mean load",
        because=f"In the all-to-alls of {top.group or 'a group'} {named([row.rank for row in busy])} "
        f"{'get more than their' if len(busy) > 1 else 'gets more than its'} part: rank {top.rank} "
        f"{units.size(top.load_bytes)}, the mean is {units.size(mean)}. All ranks "
        "wait for the one with most.",
        saving=Saving(waited_ns=(least, most)),
        certainty="likely",
        fix=fix_of(_FIX),
        check="stepscope show expert_loads RUN: imbalance near 1.",
        evidence={
            "imbalance": imbalance,
            "rank": top.rank,
            "ranks": ",".join(map(str, ranks)),
            "load_bytes": top.load_bytes,
            "mean_bytes": round(mean),
        },
        claims=WAITING,
    )
