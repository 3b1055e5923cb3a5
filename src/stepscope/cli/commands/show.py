"""Prints one analysis of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from stepscope import registry
from stepscope.cli import output
from stepscope.cli.signature import with_options_of
from stepscope.cli.traces import PassOption, RankOption, WantedPass, open_with_progress
from stepscope.errors import StepscopeError

__all__ = ["show"]


@with_options_of("analyses", "name")
def show(
    name: Annotated[str | None, "the analysis; without a name, all are listed"] = None,
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    format: Annotated[Literal["table", "csv", "json", "markdown"], "how to write the rows"] = "table",
    limit: Annotated[int | None, "at most this many rows"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    **options: Any,
) -> None:
    """Prints one analysis of a trace as a table, CSV, JSON or Markdown.

    `stepscope show NAME --help` lists the options of that analysis, `stepscope explain NAME` its columns.
    """
    if name is None:
        output.put(_listing())
        return
    if trace is None and not demo:
        raise StepscopeError(f"show {name} needs a trace", hint=f"stepscope show {name} TRACE", exit_code=2)
    if limit is not None and limit < 0:
        raise StepscopeError(f"--limit {limit} is negative", exit_code=2)
    from stepscope.present import grids
    from stepscope.runs.needs import needed_by_analysis

    analysis = registry.load("analyses", name)
    wanted = WantedPass(rank, pass_, needed_by_analysis(name, options))
    table = analysis(open_with_progress(trace, store=store, demo=demo, wanted=wanted), **options)
    width, color = output.width(), output.color()
    output.put(grids.render(table, name, format, width=width, color=color, limit=limit))


def _listing() -> str:
    analyses = registry.names("analyses", installed=True)
    width = max((len(name) for name, _ in analyses), default=0)
    return "".join(f"{name:<{width}}  {first_line}\n" for name, first_line in analyses)
