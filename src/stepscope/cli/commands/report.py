"""Says what costs time, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.output import chosen, show
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import here, open_with_progress
from stepscope.errors import StepscopeError
from stepscope.units import counted

__all__ = ["report"]

_FORMATS = "present.report"


def report(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, or a store"] = None,
    *,
    format: Annotated[
        str | None, NameIn(_FORMATS), "how to write the report; default: terminal, or by the ending of -o"
    ] = None,
    output: Annotated[Path | None, Written(), "-o", "write the report to this file"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Says what costs time, where in your code, what to change and what you gain.

    `stepscope TRACE` does the same. Set thresholds of rules in `[tool.stepscope.RULE]` of the nearest
    pyproject.toml. `stepscope explain RULE` prints what a finding means and how to fix it.
    """
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.build import build_report, import_all
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.present.formats import needs_of
    from stepscope.threads import BackgroundWorker

    wanted = chosen(_FORMATS, format, output)
    thresholds = nearest_thresholds(here())
    with BackgroundWorker() as beside:
        beside.run(import_all)
        opened = open_with_progress(trace, store=store, demo=demo)
    built = build_report(
        opened, thresholds=thresholds, tables=needs_of(wanted).tables, progress=ProgressLine()
    )
    done = f"{built.verdict.word}, {counted(len(built.findings), 'finding')}"
    show(_FORMATS, wanted, built, output, done=done)
    crashed = [one for one in built.not_run if one.crashed]
    if crashed:
        raise StepscopeError(
            f"the report is not whole: {counted(len(crashed), 'part')} failed, first {crashed[0].id}: "
            f"{crashed[0].reason}",
            hint="please report this, with the profile if you may",
        )
