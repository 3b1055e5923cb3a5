"""A check for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.compare.check import CheckResult
from stepscope.present._lines import Line, fitted, printed, styled, wrapped
from stepscope.present.check._phrases import headline, why
from stepscope.present.formats import format

__all__ = ["terminal"]

_STATES = {
    "pass": ("✓", "green"),
    "fail": ("✗", "bold red"),
    "not sure": ("≈", "yellow"),
    "not known": ("?", "bright_black"),
}


@format(ending=".txt")
def terminal(check: CheckResult, *, width: int, color: bool) -> str:
    """Text for the terminal: each budget, and what changed if there is a baseline."""
    return printed(_lines(check, fitted(width)), color=color)


def _lines(check: CheckResult, width: int) -> Iterator[Line]:
    yield from wrapped(headline(check), width, style="bold red" if check.failed else "bold green")
    for outcome in check.outcomes:
        sign, style = _STATES[outcome.state]
        state = "not sure: " if outcome.state == "not sure" else ""
        yield from wrapped(outcome.budget.text, width, indent=4, first=f" {sign}", style=style)
        place = f" ({outcome.budget.where})" if outcome in check.failed else ""
        yield from wrapped(f"{state}{outcome.said}{place}", width, indent=4)
    told = why(check)
    if told:
        yield styled()
    for said in told:
        yield from wrapped(said, width, indent=1)
