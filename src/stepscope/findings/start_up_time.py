"""Keeps start-up, which a long run pays once, out of what findings promise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.findings import Advice

if TYPE_CHECKING:
    from stepscope.analyses.start_ups import StartUp
    from stepscope.findings.mean_step import MeanStep

__all__ = ["start_up_ns", "without_start_up"]


def start_up_ns(mean_step: MeanStep, start_ups: Iterable[StartUp]) -> float:
    """How much of the mean step is start-up."""
    return mean_step.per_step(sum(row.total_ns for row in start_ups if row.step is not None))


def without_start_up(advice: Advice, mean_step: MeanStep, starting_ns: float) -> Advice:
    """The advice without a promise of start-up: at worst all of it is in the waiting that it would save."""
    low, high = advice.saving.starved_ns
    if not starting_ns or not high:
        return advice
    most = max(0.0, min(high, mean_step.starved_ns - starting_ns))
    least = min(most, max(0.0, low - starting_ns))
    return replace(advice, saving=replace(advice.saving, starved_ns=(least, most)))
