"""Says what costs time, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope.cli.output import chosen, show
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import PassOption, RankOption, WantedPass, chosen_rank, here, open_with_progress
from stepscope.errors import StepscopeError
from stepscope.units import counted

if TYPE_CHECKING:
    from stepscope.findings.report import Report
    from stepscope.runs import PassName
    from stepscope.runs.choosing import ChosenRank

__all__ = ["report"]

_FORMATS = "present.report"


def report(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    format: Annotated[
        str | None, NameIn(_FORMATS), "how to write the report; default: terminal, or by the ending of -o"
    ] = None,
    output: Annotated[Path | None, Written(), "-o", "write the report to this file"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Says what costs time, where in your code, what to change and what you gain.

    `stepscope TRACE` does the same. Set thresholds of rules in `[tool.stepscope.RULE]` of the nearest
    pyproject.toml. `stepscope explain RULE` prints what a finding means and how to fix it.

    Of a run that `stepscope run` recorded, the step is the one measured without the profiler. Times are from
    its light pass, lines and shapes from its full pass.
    """
    from stepscope.present.formats import needs_of

    wanted = chosen(_FORMATS, format, output)
    tables = needs_of(wanted).tables
    of_run = WantedPass(rank, pass_)
    run = None if trace is None or demo else chosen_rank(trace, of_run)
    if run is not None:
        built = _on_run(run, pass_, tables, store)
    else:
        built = _on_trace(trace, tables, store, demo=demo, wanted=of_run)
    done = f"{built.verdict.word}, {counted(len(built.findings), 'finding')}"
    show(_FORMATS, wanted, built, output, done=done)
    crashed = [one for one in built.not_run if one.crashed]
    if crashed:
        raise StepscopeError(
            f"the report is not whole: {counted(len(crashed), 'part')} failed, first {crashed[0].id}: "
            f"{crashed[0].reason}",
            hint="please report this, with the profile if you may",
        )


def _on_trace(
    trace: str | None, tables: Sequence[str], store: Path | None, *, demo: bool, wanted: WantedPass
) -> Report:
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.build import build_report, import_all
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.threads import BackgroundWorker

    thresholds = nearest_thresholds(here())
    with BackgroundWorker() as beside:
        beside.run(import_all)
        opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    return build_report(opened, thresholds=thresholds, tables=tables, progress=ProgressLine())


def _on_run(run: ChosenRank, only: PassName | None, tables: Sequence[str], store: Path | None) -> Report:
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.opening import report_on_run
    from stepscope.runs.choosing import choose_pass

    passes = [choose_pass(run, only)] if only else [one for one in (run.light, run.full) if one]
    return report_on_run(
        run,
        passes,
        thresholds=nearest_thresholds(here()),
        tables=tables,
        store=store,
        progress=ProgressLine(),
    )
