"""Says how the step changed between traces, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.cli.faces import on_github, show
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.compare import Comparison

__all__ = ["diff"]


def diff(
    sides: Annotated[
        tuple[str, ...], "two sides or more, oldest first: each a profile, or several (see above)"
    ],
    *,
    format: Annotated[
        Literal["terminal", "html", "markdown", "json", "github"], "the face of the comparison"
    ] = "terminal",
    style: Annotated[
        Literal["verdict", "summary"], "summary, with markdown: the page with all tables, for a wiki"
    ] = "verdict",
    output: Annotated[Path | None, "-o", "write it to a file instead"] = None,
    store: Annotated[Path | None, "the folder that keeps what was read, instead of the cache"] = None,
) -> None:
    """Says how the step changed from one trace to the next, why, and whether it is more than noise.

    stepscope diff BEFORE AFTER compares two. stepscope diff A B C D tells the history of a tuning effort:
    what each change gained, and all of them together.

    A side may be repeated, and then the interval comes from the runs themselves. A side is one word, so that
    a row of sides and repetitions of a side can both be said: a folder (before/), a pattern in quotes
    ('before-*.json.gz'), or names with commas (a1.json.gz,a2.json.gz) are repetitions of one side. Without
    repetitions 3 % of difference between runs are assumed, for steps of one run do not show it.

    The parts of the change sum to it exactly. Other devices, batches and options of the profiler are said.
    """
    if len(sides) < 2:
        raise StepscopeError(
            "there is nothing to compare with", hint="stepscope diff BEFORE AFTER", exit_code=2
        )
    if style == "summary" and format != "markdown":
        raise StepscopeError(
            "--style summary is a page in Markdown", hint="add --format markdown", exit_code=2
        )
    from stepscope.cli.traces import compared

    built = compared(sides, store=store)
    if format == "github":
        from stepscope.present.diff import github, markdown

        on_github(markdown.text(built), github.commands(built), output)
    else:
        show(lambda width, color: _text(built, format, style, width, color=color), output, _done(built))


def _done(built: Comparison) -> str:
    from stepscope.present.diff.phrases import share

    return f"{built.whole.word}, {share(built.whole.share)}"


def _text(built: Comparison, format: str, style: str, width: int, *, color: bool) -> str:
    from stepscope.present.diff import html, json, markdown, summary, terminal

    if format == "html":
        return html.page(built)
    if style == "summary":
        return summary.text(built)
    if format == "markdown":
        return markdown.text(built)
    if format == "json":
        return json.text(built)
    return terminal.text(built, width=width, color=color)
