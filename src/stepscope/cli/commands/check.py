"""Fails where a trace breaks its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope import registry
from stepscope.cli.output import chosen, show, write
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import ComparedRankOption, compared
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.compare.budgets import Budget

__all__ = ["check"]

_BROKEN = 3
_FORMATS = "present.check"


def check(
    trace: Annotated[str, "a profile, or several runs of one program, written as a side of `stepscope diff`"],
    *,
    baseline: Annotated[str | None, "the profile or runs to compare with, written the same way"] = None,
    budget: Annotated[
        tuple[str, ...], "a budget, as 'step_time < +3 %', or a file of them (.toml); may be repeated"
    ] = (),
    strict: Annotated[bool, "also fail if a budget is broken within the noise"] = False,
    format: Annotated[str | None, NameIn(_FORMATS), "how to write the result; default: terminal"] = None,
    rank: ComparedRankOption = None,
    junit: Annotated[Path | None, Written(), "also write JUnit XML to this file"] = None,
) -> int:
    """Says whether a trace meets its budgets. Exit code 3 if one is broken or cannot be judged.

    A budget is a figure, a sign and a limit: step_time < 12 ms, utilization >= 0.8, peak_memory <= 70 GiB,
    exposed_communication <= 0.05. A limit with + or − is a change against the baseline: step_time < +3 %.
    Budgets on findings: finding scalar-reads = none, finding any <= low. Write budgets in the list `budgets`
    of the nearest stepscope.toml, or of [tool.stepscope] in pyproject.toml. --budget adds one, or names
    another file. With a baseline and no budget, the step must not be slower.

    Step times and rates fail only if their whole 95 % interval is beyond the limit. If the figure is beyond
    the limit but part of the interval is not, the check says so and passes. A budget that cannot be judged
    fails: its figure or finding needs more than was recorded, or the trace is empty, cut short or without
    steps.
    """
    asked = _asked(budget)
    if not asked and baseline is None:
        raise StepscopeError(
            "check needs a baseline or a budget",
            hint="add --baseline TRACE, or --budget 'utilization >= 0.8'",
            exit_code=2,
        )
    from stepscope.compare.check import checked

    wanted = chosen(_FORMATS, format, None)
    built = compared([trace] if baseline is None else [baseline, trace], rank=rank)
    found = checked(built.sides[-1], built.changes[0] if built.changes else None, asked, strict=strict)
    if junit is not None:
        write(junit, registry.load(_FORMATS, "junit")(found))
    show(_FORMATS, wanted, found)
    return _BROKEN if found.failed else 0


def _asked(given: tuple[str, ...]) -> list[Budget]:
    from stepscope.cli.traces import here
    from stepscope.compare.budgets import budget_of, budgets_in, nearest_budgets

    files = [Path(text) for text in given if text.endswith(".toml")]
    written = [one for file in files for one in budgets_in(file)] if files else nearest_budgets(here())
    return [*written, *(budget_of(text, "--budget") for text in given if not text.endswith(".toml"))]
