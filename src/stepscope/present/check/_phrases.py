"""How all formats of a check say the same things."""

from __future__ import annotations

from stepscope import units
from stepscope.compare.check import CheckResult, Outcome
from stepscope.present._changes import reasons, sentence

__all__ = ["headline", "told", "why"]


def headline(check: CheckResult) -> str:
    """How many budgets are met, in a sentence."""
    whole = len(check.outcomes)
    against = f" against {check.baseline.name}" if check.baseline else ""
    unknown = sum(one.state == "not known" for one in check.failed)
    counts = ((len(check.failed) - unknown, "broken"), (unknown, "not judged"))
    if told := " and ".join(f"{count} {what}" for count, what in counts if count):
        return f"{check.side.name}{against}: of {units.counted(whole, 'budget')}, {told}."
    unsure = sum(one.state != "pass" for one in check.outcomes)
    rest = f", {unsure} of them not certain" if unsure else ""
    return f"{check.side.name}{against}: {whole} of {units.counted(whole, 'budget')} met{rest}."


def told(outcome: Outcome) -> str:
    """A budget and what became of it."""
    return f"{outcome.budget.text}: {outcome.said}"


def why(check: CheckResult) -> list[str]:
    """What the comparison with the baseline says, sentence by sentence."""
    change = check.change
    if change is None:
        return []
    return [said for said in (sentence(change), reasons(change), *change.caveats) if said]
