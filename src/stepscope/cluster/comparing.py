"""Runs of several ranks as the sides of a comparison: which rank is compared in depth, and all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cluster.opening import open_run
from stepscope.compare.build import compare, names_of
from stepscope.errors import StepscopeError
from stepscope.opening import check_pipes, open_pass, open_trace, recordings_of
from stepscope.runs.choosing import choose_pass, choose_rank
from stepscope.runs.finding import run_of
from stepscope.runs.mean_step import run_mean_step_of
from stepscope.runs.reporting import in_depth, side_of
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    from stepscope.compare import Comparison, RanksOfSide
    from stepscope.runs import Run
    from stepscope.runs.many import ManyRanks

__all__ = ["diff", "run_with_ranks", "sides_of"]


def diff(
    before: Trace | str | Path | Sequence[Trace | str | Path],
    after: Trace | str | Path | Sequence[Trace | str | Path],
    *more: Trace | str | Path | Sequence[Trace | str | Path],
) -> Comparison:
    """How the step changed from each side to the next, and why.

    A side is a trace or profile, or several of the same program: a list of them, or a text as in
    `stepscope diff`. Runs of several ranks are compared rank by rank, and one rank in depth.
    """
    given = (before, after, *more)
    words = [[str(one)] if isinstance(one, str | Path) else [] for one in given]
    runs = [run_with_ranks(one) if one else None for one in words]
    found = [
        _recordings(side) if run is None else [run.called] for side, run in zip(given, runs, strict=True)
    ]
    check_pipes([str(one) for side in found for one in side if not isinstance(one, Trace)])
    together = [run for run in runs if run is not None]
    rank: int | None = None
    ranks: list[RanksOfSide] = []
    if len(together) == len(given):
        rank, ranks = sides_of(together, [open_run(run) for run in together])
    opened = [
        [_rank_of(run, rank)] if run else [one if isinstance(one, Trace) else open_trace(one) for one in side]
        for run, side in zip(runs, found, strict=True)
    ]
    called = [run.called if run else traces[0].path for run, traces in zip(runs, opened, strict=True)]
    return compare(list(zip(names_of(called), opened, strict=True)), ranks=ranks)


def _recordings(side: Trace | str | Path | Sequence[Trace | str | Path]) -> list[Trace | str | Path]:
    if isinstance(side, str | Path):
        return [*recordings_of(str(side))]
    return [side] if isinstance(side, Trace) else [*side]


def _rank_of(run: Run, rank: int | None) -> Trace:
    chosen = choose_rank(run, rank)
    return open_pass(chosen, choose_pass(chosen))


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
