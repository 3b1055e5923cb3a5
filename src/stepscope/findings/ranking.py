"""Ranks findings: what each is worth, how severe it is, and which of them overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from stepscope.findings import (
    UNKNOWN_GAIN,
    Advice,
    Bounds,
    Category,
    Certainty,
    Finding,
    Gain,
    Saving,
    Severity,
)
from stepscope.findings.claims import overlap
from stepscope.findings.mean_step import MeanStep

__all__ = ["Weighing", "overlapping", "ranked", "severity_of", "together", "unweighed"]

HIGH_SHARE = 0.10
MEDIUM_SHARE = 0.03
_BELIEVED = {"certain": 0.5, "likely": 0.4, "possible": 0.1}


class Weighing(Protocol):
    """The mean step of a trace or of a run."""

    def gain(self, saving: Saving) -> Gain:
        """What a saving in the recorded step is worth in one without the profiler."""


def severity_of(gain: Gain, certainty: Certainty, *, risk: bool = False) -> Severity:
    """How severe a finding is: by what it gains at least, and how certain it is."""
    if risk:
        return "medium"
    high, medium = (HIGH_SHARE, MEDIUM_SHARE) if certainty != "possible" else (2.0, HIGH_SHARE)
    if gain.low_share >= high:
        return "high"
    return "medium" if gain.low_share >= medium else "low"


def ranked(advices: Iterable[tuple[str, Category, Advice]], mean_step: Weighing) -> tuple[Finding, ...]:
    """The findings, largest gain first, each with the findings above it that it overlaps with."""
    weighed = [
        (name, category, one, mean_step.gain(one.saving) if one.saving.known else UNKNOWN_GAIN)
        for name, category, one in advices
    ]
    weighed.sort(key=lambda one: (-_expected(one[2], one[3]), not one[2].risk, one[0]))
    findings: list[Finding] = []
    for name, category, advice, gain in weighed:
        sharing = tuple(
            above.id
            for above in findings
            if above.gain.high_ns and gain.high_ns and overlap(above.advice.claims, advice.claims)
        )
        severity = severity_of(gain, advice.certainty, risk=advice.risk)
        findings.append(Finding(name, category, advice, gain, severity, sharing))
    return tuple(findings)


def unweighed(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings on a file that has no steps: what a fix gains in them is not known."""
    return tuple(replace(one, gain=UNKNOWN_GAIN, shares_time_with=()) for one in findings)


def _expected(advice: Advice, gain: Gain) -> float:
    """The expected gain: the more certain the advice, the further above its lower bound."""
    return gain.low_ns + _BELIEVED[advice.certainty] * (gain.high_ns - gain.low_ns)


def together(findings: Sequence[Finding], mean_step: MeanStep) -> Saving:
    """What all of them save together, with overlapping time counted once.

    Findings that overlap save at least what the surest of them saves, and at most the sum of all, but no more
    than the time that there is.
    """
    groups = overlapping(findings)
    sure = [max(group, key=lambda one: one.gain.low_ns) for group in groups]

    def summed(name: str) -> Bounds:
        low = sum(getattr(one.advice.saving, name)[0] for one in sure)
        return low, sum(getattr(one.advice.saving, name)[1] for one in findings)

    return Saving(
        starved_ns=_capped(summed("starved_ns"), mean_step.starved_ns),
        device_ns=_capped(summed("device_ns"), mean_step.work_ns),
        waited_ns=_capped(summed("waited_ns"), mean_step.step_ns),
    )


def overlapping(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings in groups that have no time in common with one another."""
    groups: list[list[Finding]] = []
    for finding in findings:
        claims = finding.advice.claims
        alike = [group for group in groups if any(overlap(one.advice.claims, claims) for one in group)]
        groups = [group for group in groups if group not in alike]
        groups.append([*(one for group in alike for one in group), finding])
    return groups


def _capped(bounds: Bounds, most: float) -> Bounds:
    return min(bounds[0], most), min(bounds[1], most)
