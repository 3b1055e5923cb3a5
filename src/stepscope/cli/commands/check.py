"""Fails where a trace breaks its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.cli.faces import on_github, show, write
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.compare.budgets import Budget
    from stepscope.compare.check import CheckResult

__all__ = ["check"]

_BROKEN = 3


def check(
    trace: Annotated[str, "a profile, or several of the same program, as a side of `stepscope diff`"],
    *,
    baseline: Annotated[str | None, "what to compare it with, named in the same ways"] = None,
    budget: Annotated[
        tuple[str, ...], "a budget, as 'step_time < +3 %', or a file of them (.toml); may be repeated"
    ] = (),
    strict: Annotated[bool, "what is not sure or not known fails, too"] = False,
    format: Annotated[
        Literal["terminal", "markdown", "json", "github"], "the face of the check"
    ] = "terminal",
    junit: Annotated[Path | None, "write JUnit XML to this file, too"] = None,
) -> int:
    """Says whether a trace keeps its budgets; exit code 3 where one is broken beyond noise, else 0.

    A budget is a figure, a sign and a limit: step_time < 12 ms, utilization >= 0.8, peak_memory <= 70 GiB,
    exposed_communication <= 0.05. A limit with + or − is a change against the baseline: step_time < +3 %.
    About findings: finding scalar-reads = none, finding any <= low. Budgets stand in the list `budgets` of
    the nearest stepscope.toml, or of [tool.stepscope] in pyproject.toml; --budget adds to them, or names
    another file. A baseline without any budget asks that the step is not slower.

    Step times and rates fail only where all of their 95 % interval is beyond the limit. Where the figure is
    beyond it and the interval is not, that is said, and does not fail.
    """
    asked = _asked(budget)
    if not asked and baseline is None:
        raise StepscopeError(
            "there is nothing to check against",
            hint="add --baseline TRACE, or --budget 'utilization >= 0.8'",
            exit_code=2,
        )
    from stepscope.cli.traces import compared
    from stepscope.compare.check import checked

    built = compared([trace] if baseline is None else [baseline, trace])
    found = checked(built.sides[-1], built.changes[0] if built.changes else None, asked, strict=strict)
    _present(found, format)
    if junit is not None:
        from stepscope.present.check import junit as as_junit

        write(junit, as_junit.text(found))
    return _BROKEN if found.failed else 0


def _asked(given: tuple[str, ...]) -> list[Budget]:
    from stepscope.compare.budgets import budget_of, budgets_in, nearest_budgets

    files = [Path(text) for text in given if text.endswith(".toml")]
    written = [one for file in files for one in budgets_in(file)] if files else nearest_budgets(Path.cwd())
    return [*written, *(budget_of(text, "--budget") for text in given if not text.endswith(".toml"))]


def _present(found: CheckResult, format: str) -> None:
    from stepscope.present.check import github, json, markdown, terminal

    if format == "github":
        on_github(markdown.text(found), github.commands(found), None)
        return

    def text(width: int, color: bool) -> str:
        if format == "markdown":
            return markdown.text(found)
        return json.text(found) if format == "json" else terminal.text(found, width=width, color=color)

    show(text, None, "")
