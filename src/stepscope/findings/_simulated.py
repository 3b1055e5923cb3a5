"""What a change gains, from a simulation of the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.findings import Saving
from stepscope.findings._waits import of_shares

if TYPE_CHECKING:
    from stepscope.analyses.changed_steps import ChangedStep
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["simulated"]

DOUBT = (0.85, 1.2)
"""What fixing a fault gained, as a part of what the simulation predicted: at least and at most, in four of
five programs."""


def simulated(mean_step: MeanStep, changed_steps: Table[ChangedStep]) -> Saving:
    """What a change saves of the step in a simulation, which may be as wrong as the one without it is."""
    if not changed_steps:
        return Saving()
    (row,) = changed_steps
    if not mean_step.is_simulated:
        return of_shares(mean_step, 0.0, min(1.0, DOUBT[1] * max(0.0, row.gain_high_share)))
    error = (abs(row.simulated_ns - row.recorded_ns) + row.unexplained_ns) / row.recorded_ns
    low = max(0.0, DOUBT[0] * row.gain_low_share - error)
    high = min(1.0, DOUBT[1] * max(0.0, row.gain_high_share) + error)
    return of_shares(mean_step, low, high)
