"""Keeps start-up and captures of graphs, which a long run pays once, out of what findings promise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.findings import Advice, Bounds
from stepscope.findings.claims import Part, Time

if TYPE_CHECKING:
    from stepscope.analyses.compilations import Compilation
    from stepscope.analyses.start_ups import StartUp
    from stepscope.findings import Finding
    from stepscope.findings.mean_step import MeanStep

__all__ = ["mostly_start_up", "start_up_ns", "start_up_share", "without_start_up"]

MUCH = 0.5
"""Where the start of the program takes as much of the steps, the rest of them shows little of a long run."""


def start_up_share(findings: Iterable[Finding]) -> float:
    """How much of the recorded steps is the start of the program, as its finding says."""
    shares = (one.advice.evidence["start_up_share"] for one in findings if one.id == "start-up")
    share = next(shares, 0.0)
    return share if isinstance(share, float) else 0.0


def mostly_start_up(findings: Iterable[Finding]) -> bool:
    """Whether the recorded steps tell little of those of a long run."""
    return start_up_share(findings) >= MUCH


def start_up_ns(
    mean_step: MeanStep, start_ups: Iterable[StartUp], compilations: Iterable[Compilation] = ()
) -> float:
    """How much of the mean step is start-up or a capture of graphs; other compiling is left to the rules."""
    inside = [row.total_ns for row in start_ups if row.step is not None]
    inside += [row.total_ns for row in compilations if row.kind == "capture" and row.step is not None]
    return mean_step.per_step(sum(inside))


def without_start_up(advice: Advice, mean_step: MeanStep, starting_ns: float) -> Advice:
    """The advice without a promise of start-up: at worst all of it is in the waiting that it would save."""
    if not starting_ns or any(claim.part is Part.COMPILATION for claim in advice.claims):
        return advice
    saving = advice.saving
    starved, waited = _less(saving.starved_ns, starting_ns, mean_step.starved_ns), saving.waited_ns
    # Loaders, peers and copies do not start up; a host that computes may.
    if any(claim.time is Time.STARVED for claim in advice.claims):
        waited = _less(waited, starting_ns, mean_step.step_ns - starved[1])
    return replace(advice, saving=replace(saving, starved_ns=starved, waited_ns=waited))


def _less(bounds: Bounds, starting_ns: float, all_ns: float) -> Bounds:
    """What is saved of some time without start-up."""
    low, high = bounds
    most = max(0.0, min(high, all_ns - starting_ns))
    return min(most, max(0.0, low - starting_ns)), most
