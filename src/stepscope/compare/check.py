"""Whether a trace meets its budgets: beyond noise, and against a baseline if there is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from stepscope import units
from stepscope.analyses.trust import LOST
from stepscope.compare import Side, StepChange
from stepscope.compare.budgets import FIGURES, SEVERITIES, Budget, budget_of
from stepscope.compare.intervals import spread_of
from stepscope.errors import StepscopeError
from stepscope.findings.overview import NO_STEPS
from stepscope.records import dataclass

__all__ = ["SCHEMA", "CheckResult", "Outcome", "checked"]

SCHEMA = "stepscope.check/1"

State = Literal["pass", "fail", "not sure", "not known"]
_NOISY = ("step_time", "steps_per_second", "samples_per_second", "tokens_per_second")
"""Figures that vary from run to run as the step does; the others are taken as they are."""
NOT_SLOWER = "step_time <= +0 %"
"""What must hold against a baseline if no budget is written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a budget."""

    budget: Budget
    state: State
    value: float | None
    """What the trace has: the figure, or the part by which it differs from the baseline; of a finding its
    severity, as a place in SEVERITIES."""
    said: str
    """The same as a sentence."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A trace against its budgets."""

    side: Side
    baseline: Side | None
    change: StepChange | None
    """From the baseline to the trace."""
    outcomes: tuple[Outcome, ...]
    strict: bool = False
    """Whether what is not sure fails, too."""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """What does not keep its budget: what breaks it, and what is not known to keep it."""
        bad = ("fail", "not known", "not sure") if self.strict else ("fail", "not known")
        return tuple(one for one in self.outcomes if one.state in bad)


def checked(
    side: Side, change: StepChange | None, budgets: Sequence[Budget], *, strict: bool = False
) -> CheckResult:
    """Judges every budget; a baseline without any asks that the step is not slower."""
    asked = list(budgets)
    if not asked and change:
        asked = [budget_of(NOT_SLOWER, "--baseline")]
    unfit = _unfit(side) or (_unfit(change.before) if change else "")
    outcomes = tuple(
        Outcome(budget, "not known", None, unfit) if unfit else _judged(budget, side, change)
        for budget in asked
    )
    return CheckResult(side, change.before if change else None, change, outcomes, strict)


def _unfit(side: Side) -> str:
    """Why no budget can be judged by a side, or nothing: what is not there breaks no limit."""
    for run in side.runs:
        report = run.report
        lost = next((one for one in report.trust if one.what == LOST), None)
        crashed = next((one for one in report.not_run if one.crashed), None)
        if lost:
            return f"{side.name} is not whole. {lost.explanation} {lost.advice}"
        if not sum(run.lengths_ns):
            return f"{side.name} has no steps: nothing with a duration was recorded."
        if report.overview.found_by == NO_STEPS:
            return (
                f"No steps were found in {side.name}. Call `prof.step()` after each step, and record again."
            )
        if crashed:
            return f"The report on {side.name} is not whole: {crashed.id}: {crashed.reason}."
    return ""


def _judged(budget: Budget, side: Side, change: StepChange | None) -> Outcome:
    if budget.about_finding:
        return _finding(budget, side)
    figure = FIGURES[budget.name]
    value = figure.of(side)
    if value is None:
        record = f": record with {figure.record}" if figure.record else ""
        return Outcome(budget, "not known", None, f"{budget.name} is unknown{record}.")
    if not budget.relative:
        half = spread_of(side.true_lengths_ns) if budget.name in _NOISY else 0.0
        return _against(budget, value, half, f"{budget.name} is {figure.text(value)}")
    if change is None:
        raise StepscopeError(
            f"{budget.where}: the budget {budget.text!r} needs a baseline",
            hint="add --baseline TRACE",
            exit_code=2,
        )
    before = figure.of(change.before)
    if not before:
        return Outcome(budget, "not known", None, f"{budget.name} of the baseline is unknown.")
    half = _half_of(change) if budget.name in _NOISY else 0.0
    ends = f"{figure.text(before)} → {figure.text(value)}"
    return _against(budget, value / before - 1, half, f"{budget.name} changed by {{}} ({ends})")


def _half_of(change: StepChange) -> float:
    """Half the width of the interval of a change, of the logarithm of the ratio."""
    if change.truth is None or not change.after.true_ns:
        return 0.0
    most = change.before.true_ns + change.truth.high_ns
    return max(0.0, math.log(most / change.after.true_ns))


def _against(budget: Budget, value: float, half: float, said: str) -> Outcome:
    """A limit is broken where all that the value may be in truth lies beyond it."""

    def at(end: float) -> float:
        return (1 + value) * math.exp(end) - 1 if budget.relative else value * math.exp(end)

    signed = f"{value * 100:+.1f} %".replace("-", "−") if budget.relative else ""
    said = said.format(signed)
    noise = f", within the noise of ±{units.share(half)}" if half else ""
    if budget.kept_by(value):
        return Outcome(budget, "pass", value, f"{said}.")
    if half and any(budget.kept_by(at(end)) for end in (-half, half)):
        return Outcome(budget, "not sure", value, f"{said}{noise}: repeat the run to be certain.")
    beyond = f", beyond the noise of ±{units.share(half)}" if half else ""
    return Outcome(budget, "fail", value, f"{said}{beyond}.")


def _finding(budget: Budget, side: Side) -> Outcome:
    these = [finding for finding in side.report.findings if not budget.ids or finding.id in budget.ids]
    worst = max((SEVERITIES.index(finding.severity) for finding in these), default=0)
    if worst > budget.limit:
        over = [one for one in these if SEVERITIES.index(one.severity) > budget.limit]
        told = ", ".join(f"{one.id} ({one.severity}): {one.advice.title}" for one in over)
        return Outcome(budget, "fail", worst, f"{told}.")
    missing = [one for one in side.report.not_run if not budget.ids or one.id in budget.ids]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        record = f"; record with {missing[0].record}" if missing[0].record else ""
        said = f"{missing[0].id}{more} could not be judged: {missing[0].reason}{record}."
        return Outcome(budget, "not known", None, said)
    found = f"at most {SEVERITIES[worst]}" if these else "none"
    return Outcome(budget, "pass", worst, f"{budget.name}: {found}.")
