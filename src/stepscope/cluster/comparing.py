"""Runs of several ranks as the sides of a comparison: which rank is compared in depth, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.runs.finding import run_of
from stepscope.runs.mean_step import run_mean_step_of
from stepscope.runs.reporting import in_depth, side_of

if TYPE_CHECKING:
    from stepscope.compare import RanksOfSide
    from stepscope.runs import Run
    from stepscope.runs.many import ManyRanks

__all__ = ["run_with_ranks", "sides_of"]


def run_with_ranks(words: Sequence[str]) -> Run | None:
    """The run of several ranks that words name; None for one profile, and for repetitions of one."""
    if any("," in word or word == "-" for word in words):
        return None
    run = None
    with suppress(StepscopeError):  # two profiles of one rank are repetitions
        run = run_of(words)
    return run if run is not None and len(run.told) > 1 else None


def sides_of(runs: Sequence[Run], opened: Sequence[ManyRanks]) -> tuple[int, list[RanksOfSide]]:
    """The rank to compare in depth, which sets the pace of the first run, and all ranks of each side."""
    chosen = [in_depth(one, run_mean_step_of(one)) for one in opened]
    common = set.intersection(*({one.rank for one in run.profiled} for run in runs))
    if not common:
        raise StepscopeError("the runs have no rank in common", hint="name the profiles of one rank each")
    rank = chosen[0].judged if chosen[0].judged in common else min(common)
    return rank, [side_of(one, depth) for one, depth in zip(opened, chosen, strict=True)]
