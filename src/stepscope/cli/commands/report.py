"""Says what costs time, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.cli.faces import on_github, show
from stepscope.cli.traces import open_with_progress
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.findings.report import Report

__all__ = ["report"]


def report(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, or a store"] = None,
    *,
    format: Annotated[
        Literal["terminal", "html", "markdown", "json", "github"], "the face of the report"
    ] = "terminal",
    style: Annotated[
        Literal["verdict", "summary"], "summary, with markdown: the page of totals that teams share"
    ] = "verdict",
    output: Annotated[Path | None, "-o", "write it to a file instead"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    store: Annotated[Path | None, "the folder that keeps what was read, instead of the cache"] = None,
) -> None:
    """Says what costs time, where in your code, what to change and what you gain.

    `stepscope TRACE` alone does the same. Thresholds of rules stand in `[tool.stepscope.RULE]` of the nearest
    pyproject.toml. On GitHub, --format github writes the job's summary and prints annotations.
    """
    if style == "summary" and format != "markdown":
        raise StepscopeError(
            "--style summary is a page in Markdown", hint="add --format markdown", exit_code=2
        )
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.build import build_report, import_all
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.threads import BackgroundWorker

    thresholds = nearest_thresholds(Path.cwd())
    with BackgroundWorker() as beside:
        beside.run(import_all)
        opened = open_with_progress(trace, store=store, demo=demo)
    built = build_report(
        opened, thresholds=thresholds, tables=_tables(format, style), progress=ProgressLine()
    )
    if format == "github":
        from stepscope.present import github, markdown

        on_github(markdown.text(built), github.commands(built), output)
    else:
        done = f"{built.verdict.word}, {len(built.findings)} findings"
        show(lambda width, color: _text(built, format, style, width, color=color), output, done)


def _tables(format: str, style: str) -> tuple[str, ...]:
    """The analyses that a face shows beside the report itself."""
    from stepscope.present import html, summary

    if style == "summary":
        return summary.TABLES
    return html.TABLES if format == "html" else ()


def _text(built: Report, format: str, style: str, width: int, *, color: bool) -> str:
    from stepscope.present import html, json, markdown, summary, terminal

    if format == "html":
        return html.page(built)
    if style == "summary":
        return summary.text(built)
    if format == "markdown":
        return markdown.text(built)
    if format == "json":
        return json.text(built)
    return terminal.text(built, width=width, color=color)
