"""A check as annotations of a job on GitHub: an error a broken budget, where it is written."""

from __future__ import annotations

from stepscope.compare.check import CheckResult, Outcome
from stepscope.findings import Location
from stepscope.present._workflow import command, lines
from stepscope.present.check._phrases import headline, why
from stepscope.present.formats import format

__all__ = ["github"]

_LEVELS = {"pass": "notice", "fail": "error", "not sure": "warning", "not known": "warning"}


@format(ending=".github.txt", job_summary="markdown")
def github(check: CheckResult) -> str:
    """Annotations for GitHub Actions where budgets are written; adds a page to the job summary.

    One workflow command for the whole check, and one for every budget that is not certainly met.
    """
    whole = command(
        "error" if check.failed else "notice", "stepscope check", " ".join([headline(check), *why(check)])
    )
    commands = [whole, *(_annotation(check, one) for one in check.outcomes if one.state != "pass")]
    return lines(commands)


def _annotation(check: CheckResult, outcome: Outcome) -> str:
    level = "error" if outcome in check.failed else _LEVELS[outcome.state]
    file, colon, line = outcome.budget.where.rpartition(":")
    place = Location(file, int(line), "") if colon and line.isdigit() else None
    return command(level, f"{outcome.state}: {outcome.budget.text}", outcome.said, place)
