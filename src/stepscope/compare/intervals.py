"""How sure a difference of two means is: Welch's t, and what one run cannot know of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from stepscope import units
from stepscope.compare import Interval
from stepscope.student import t_quantile

__all__ = ["BETWEEN_RUNS", "LONE_STEPS", "interval_of", "spread_of"]

BETWEEN_RUNS = 0.03
"""By how much two runs of one program may differ, as a part of the step, if they were not repeated."""
LONE_STEPS = 0.10
"""The same where each side has a single step, which does not show how steps vary."""

Runs = Sequence[Sequence[int]]
"""The lengths of the steps of each run."""


def interval_of(before: Runs, after: Runs) -> Interval | None:
    """Where the change of the mean step lies; None where a side has no steps, or none with a length.

    With repetitions, the means of the runs are the sample: they vary as runs do. Without, the steps are, and
    the difference between runs that they cannot show is assumed. It is the ratio of the means that is
    estimated, on a scale of logarithms: so no step gets shorter than nothing.
    """
    sides = [[run for run in runs if run] for runs in (before, after)]
    if not all(sides):
        return None
    means = [mean(mean(run) for run in runs) for runs in sides]
    if not all(means):
        return None
    if max(map(len, sides)) > 1:
        half = _half_width([[mean(run) for run in runs] for runs in sides], [_within(runs) for runs in sides])
        return _around(means, half, f"Based on the means of {_numbers(sides)} runs.", None)
    steps = [list(runs[0]) for runs in sides]
    if max(map(len, steps)) == 1:
        said = f"One step per side does not show how steps vary: {LONE_STEPS * 100:.0f} % is assumed."
        return _around(means, math.log1p(LONE_STEPS), said, LONE_STEPS)
    half = math.hypot(_half_width(steps), math.log1p(BETWEEN_RUNS))
    said = (
        f"Based on {_numbers(steps)} steps of one run each, assuming that runs differ by "
        f"{BETWEEN_RUNS * 100:.0f} %."
    )
    return _around(means, half, said, BETWEEN_RUNS)


def spread_of(runs: Runs) -> float:
    """Half the width of the interval of one side's mean step, as a part of it."""
    known = [run for run in runs if run and sum(run)]
    sample: Sequence[float] = [mean(run) for run in known] if len(known) > 1 else [*known[0]] if known else []
    if not sample:
        return 0.0
    if len(sample) == 1:
        return math.log1p(LONE_STEPS) / math.sqrt(2)
    error = max((stdev(sample) / mean(sample)) ** 2 / len(sample), _within(known))
    half = t_quantile(len(sample) - 1) * math.sqrt(error)
    return half if len(known) > 1 else math.hypot(half, math.log1p(BETWEEN_RUNS) / math.sqrt(2))


def _within(runs: Runs) -> float:
    """The squared error of the mean of runs that their steps alone give: less it cannot be."""
    errors = [(stdev(run) / mean(run)) ** 2 / len(run) for run in runs if len(run) > 1]
    return sum(errors) / len(runs) ** 2


def _numbers(sides: Sequence[Sequence[object]]) -> str:
    return " and ".join(units.count(len(side)) for side in sides)


def _around(means: Sequence[float], half: float, basis: str, assumed: float | None) -> Interval:
    ends = [means[1] * math.exp(end) - means[0] for end in (-half, half)]
    return Interval(math.floor(ends[0]), math.ceil(ends[1]), basis, assumed)


def _half_width(samples: Sequence[Sequence[float]], least: Sequence[float] = (0.0, 0.0)) -> float:
    """Of the logarithm of the ratio of two means, by Welch; squared errors are at least the smallest ones.

    A side with one value is taken to vary by the same part as the other one.
    """
    known = [stdev(values) / mean(values) if len(values) > 1 else None for values in samples]
    lent = next(share for share in known if share is not None)
    most = max(map(len, samples)) - 1
    errors = [
        max((lent if share is None else share) ** 2 / len(values), floor)
        for share, values, floor in zip(known, samples, least, strict=True)
    ]
    if not sum(errors):
        return 0.0
    freedom = [len(values) - 1 or most for values in samples]
    welch = sum(errors) ** 2 / sum(one**2 / free for one, free in zip(errors, freedom, strict=True))
    return t_quantile(welch) * math.sqrt(sum(errors))
