"""Whether ranks number their steps alike: a profile that names no steps counts its own from the first."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import pairwise
from statistics import median

from stepscope.records import dataclass
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text

__all__ = ["StepShifts", "step_shifts"]

_LEAST_NEAR = 4
"""Steps are the same if they begin within this part of a step: a fourth."""


@dataclass(frozen=True, slots=True)
class StepShifts:
    """What to add to the step numbers of some ranks."""

    by_rank: dict[int, int]
    notes: tuple[str, ...]


def step_shifts(run: ManyRanks) -> StepShifts:
    """Compares steps by the clock: of ranks on one host, and of those with no step in common."""
    steps = {
        one.facts.rank: dict(
            zip(
                one.tables["steps"].arrow["step"].to_pylist(),
                one.tables["steps"].arrow["start_ns"].to_pylist(),
                strict=True,
            )
        )
        for one in run.summaries
        if len(one.tables["steps"])
    }
    if not steps:
        return StepShifts({}, ())
    most = max(steps, key=lambda rank: (len(steps[rank]), -rank))
    firsts: dict[str, int] = {}
    shifts: dict[int, int] = {}
    for rank in sorted(steps):
        host = run.host_of(rank)
        known = firsts.setdefault(host, rank) if host else most
        if known != rank and host:
            shifts[rank] = shifts.get(known, 0) + _apart(steps[rank], steps[known])
        elif not steps[rank].keys() & steps[most].keys():
            shifts[rank] = _apart(steps[rank], steps[most])
    shifts = {rank: by for rank, by in shifts.items() if by}
    notes: tuple[str, ...] = ()
    if shifts:
        said = f"rank {ranks_text(shifts)}" if len(shifts) == 1 else f"ranks {ranks_text(shifts)}"
        notes = (
            f"By their clocks, {said} number their steps differently: they are counted like the others'.",
        )
    return StepShifts(shifts, notes)


def _apart(own: dict[int, int], others: dict[int, int]) -> int:
    """By how much the numbers of steps differ that began at the same time; 0 if that is not clear."""
    numbers, starts = list(others), list(others.values())
    lengths = [after - before for before, after in pairwise(starts)]
    if not lengths:
        lengths = [after - before for before, after in pairwise(own.values())]
    if not lengths:
        return 0
    near = median(lengths) / _LEAST_NEAR
    found: Counter[int] = Counter()
    for number, start in own.items():
        place = bisect_left(starts, start)
        for candidate in (place - 1, place):
            if 0 <= candidate < len(starts) and abs(starts[candidate] - start) <= near:
                found[numbers[candidate] - number] += 1
    if not found or 2 * found.most_common(1)[0][1] <= len(own):
        return 0
    return found.most_common(1)[0][0]
