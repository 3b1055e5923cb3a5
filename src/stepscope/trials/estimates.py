"""How sure a change of the step is: Student's interval over pairs of runs, and when there are enough of them.

The two runs of a pair follow each other, so that they share what drifts: clocks, temperature, neighbours. It
is their ratio that is estimated, on a scale of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from stepscope.student import t_quantile
from stepscope.trials import Estimate, Measurement

__all__ = ["LEAST_PAIRS", "estimate", "is_enough", "order"]

LEAST_PAIRS = 3
_LEAST_ERROR = 0.0005
"""No mean of a run is better known than this: clocks drift, too."""


def order(pair: int) -> tuple[int, int]:
    """Which side runs first in a pair, 0 before and 1 after the change: A B, B A, A B, and so on.

    What gets slower or faster all the time then favours neither side.
    """
    return (0, 1) if pair % 2 == 0 else (1, 0)


def estimate(before: Sequence[Measurement], after: Sequence[Measurement]) -> Estimate | None:
    """The gain of the mean step with its 95 % interval; None for fewer than two pairs."""
    pairs = list(zip(before, after, strict=False))
    if len(pairs) < 2:
        return None
    ratios = [math.log(late.mean_ns / early.mean_ns) for early, late in pairs]
    error = stdev(ratios) / math.sqrt(len(ratios))
    # A few pairs may agree by chance; the steps inside of runs say how well a mean can be known at best.
    least = math.sqrt(sum(_squared_error(run) for pair in pairs for run in pair)) / len(pairs)
    half = t_quantile(len(pairs) - 1) * max(error, least)
    middle = mean(ratios)
    return Estimate(
        gain_share=-math.expm1(middle),
        low_share=-math.expm1(middle + half),
        high_share=-math.expm1(middle - half),
        pairs=len(pairs),
    )


def is_enough(found: Estimate | None, half_width: float) -> bool:
    """Whether the gain is known well enough, from enough pairs."""
    return found is not None and found.pairs >= LEAST_PAIRS and found.half_width <= half_width


def _squared_error(run: Measurement) -> float:
    """That of the mean step of one run, as a part of it."""
    if len(run.steps_ns) < 2:
        return _LEAST_ERROR**2
    within = (stdev(run.steps_ns) / run.mean_ns) ** 2 / len(run.steps_ns)
    return max(within, _LEAST_ERROR**2)
