"""Garbage collections hit different ranks in different steps."""

from __future__ import annotations

from collections import Counter, defaultdict

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.rank_steps import RankStep
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.rules._late import changes_of, claims_of, named
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["unsynchronised_collector"]

_TOGETHER = """\
import gc
gc.collect(); gc.freeze()    # after the first steps: what lives on is not looked at again
gc.disable()
for number, batch in enumerate(loader):
    train(batch)
    if number % 100 == 0:
        gc.collect()         # on all ranks in the same step, so that none waits for another"""
_PAUSED = 0.1
"""A step counts as paused from this part of the longest pause on."""


@rule(category=Category.HOST)
def unsynchronised_collector(
    run_step: RunMeanStep, rank_steps: Table[RankStep], *, least_share: float = 0.01
) -> Advice | None:
    """Python's garbage collector stops one rank here and another one there, and all ranks wait each time.

    A step takes as long as its slowest rank: if every rank collects in a step of its own, all pay for all of
    the pauses. Pauses of all ranks in the same step cost only the longest.

    Gain: recording does not make the collector slower.

    - at most: all ranks are played together without any pause, with 1/5 more.
    - at least: the longest pause of each step, summed up, less all pauses of the rank that has most: so much
      goes if all collect in the same steps. Or, if more, what the play loses if ranks pause no longer than
      the median rank over all steps. Both less 15 %.
    """
    pauses = _pauses(rank_steps)
    if not pauses:
        return None
    by_rank: Counter[int] = Counter()
    for of_step in pauses.values():
        by_rank.update(of_step)
    ranks = sorted(by_rank, key=lambda rank: -by_rank[rank])
    slowest = sum(max(of_step.values()) for of_step in pauses.values())
    apart = run_step.per_step(slowest - by_rank[ranks[0]])
    most = run_step.per_step(slowest)
    saving = run_step.saving([RankChange(None, "collector")], 1.2 * most)
    if run_step.share(saving.waited_ns[1]) < least_share:
        return None
    like_median = run_step.saving(changes_of(ranks, "collector"), most).waited_ns[0]
    low = min(saving.waited_ns[1], max(0.85 * apart, like_median)) if run_step.simulator.is_usable else 0.0
    longest = max(max(of_step.values()) for of_step in pauses.values())
    hit = [step for step, of_step in pauses.items() if max(of_step.values()) >= _PAUSED * longest]
    told = named(ranks).capitalize()
    return Advice(
        title="Garbage collections of one rank stop all of them",
        because=f"Python's garbage collector runs in {units.counted(len(hit), 'step')} of {run_step.steps}, "
        f"on {told[0].lower()}{told[1:]}, for up to {units.duration(longest)}. A step waits for its slowest "
        f"rank, so that the pauses cost {units.duration(most)} of the mean step"
        + (
            f"; in the same step on all ranks they would cost {units.duration(most - apart)}."
            if apart > 0.1 * most
            else "."
        ),
        saving=Saving(waited_ns=(low, saving.waited_ns[1])),
        certainty="likely" if len(hit) > 1 else "possible",
        fix=fix_of(line(Change.COLLECTOR, _TOGETHER)),
        check="stepscope show rank_steps RUN: collector_ns is 0, or in the same steps on all ranks.",
        evidence={
            "rank": ranks[0],
            "ranks": ",".join(map(str, ranks)),
            "pause_ns": round(most),
            "apart_ns": round(apart),
            "longest_ns": longest,
            "steps_with_pauses": len(hit),
        },
        claims=claims_of("collector"),
    )


def _pauses(rank_steps: Table[RankStep]) -> dict[int, dict[int, int]]:
    """How long the collector ran in each step on each rank, in ns, where it did."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for row in rank_steps:
        if row.collector_ns and row.rank is not None and row.step is not None:
            found[row.step][row.rank] = row.collector_ns
    return found
