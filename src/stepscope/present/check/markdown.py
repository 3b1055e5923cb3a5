"""A check in Markdown, for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.compare.check import CheckResult
from stepscope.present._change_markdown import change_lines, verdict
from stepscope.present._markdown import code, escaped, rows
from stepscope.present.check._phrases import headline
from stepscope.present.formats import format

__all__ = ["markdown"]

_SIGNS = {"pass": "✓", "fail": "✗", "not sure": "≈", "not known": "?"}
_KERNELS = 6


@format(ending=".md")
def markdown(check: CheckResult) -> str:
    """A page of Markdown, for a pull request or a job summary."""
    return "\n".join(_lines(check)) + "\n"


def _lines(check: CheckResult) -> Iterator[str]:
    yield f"# {'Budgets broken' if check.failed else 'Budgets met'}"
    yield ""
    yield escaped(headline(check))
    yield ""
    lines = (
        [
            f"{_SIGNS[one.state]} {one.state}",
            code(one.budget.text),
            escaped(one.said),
            escaped(one.budget.where),
        ]
        for one in check.outcomes
    )
    yield from rows(["", "budget", "this trace", "from"], lines)
    yield ""
    if check.change:
        yield from verdict(check.change)
        yield from change_lines(check.change, _KERNELS)
