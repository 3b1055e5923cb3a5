"""Says what costs time, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope.cli._quick_arrow import quick_arrow
from stepscope.cli.output import chosen, notice, show
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import (
    AddressOption,
    EngineOption,
    PassOption,
    WantedPass,
    WorkersOption,
    at_work,
    here,
    open_run_with_progress,
    open_with_progress,
)
from stepscope.errors import StepscopeError
from stepscope.units import counted

if TYPE_CHECKING:
    from stepscope.cluster.opening import Where
    from stepscope.findings.report import Report
    from stepscope.runs import Run

__all__ = ["report"]

_FORMATS = "present.report"


def report(
    trace: Annotated[
        tuple[str, ...], "a profile (path, URL or -), a store, a run, or the profiles of a run's ranks"
    ] = (),
    *,
    format: Annotated[
        str | None, NameIn(_FORMATS), "how to write the report; default: terminal, or by the ending of -o"
    ] = None,
    output: Annotated[Path | None, Written(), "-o", "write the report to this file"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: Annotated[int | None, "of a run, report on this rank alone; default: on all of them"] = None,
    pass_: PassOption = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Says what costs time, where in your code, what to change and what you gain.

    `stepscope TRACE` does the same. Set thresholds of rules in `[tool.stepscope.RULE]` of the nearest
    pyproject.toml. `stepscope explain RULE` prints what a finding means and how to fix it.

    Of a run that `stepscope run` recorded, the step is the one measured without the profiler. Times are from
    its light pass, lines and shapes from its full pass.

    Of a run with several ranks (its folder, a folder or pattern of profiles, a prefix of URLs, or several
    profiles), the report says who waits for whom, and looks at the rank in depth that sets the pace. --rank N
    reports on that rank alone.
    """
    from stepscope.present.formats import needs_of
    from stepscope.runs.finding import run_of

    wanted = chosen(_FORMATS, format, output)
    tables = needs_of(wanted).tables
    run = None if demo or not trace else run_of(trace)
    if run is None:
        one = WantedPass(rank, pass_)
        built = _on_trace(trace[0] if trace else None, tables, store, demo=demo, wanted=one)
    elif rank is None and pass_ is None and len(run.told) > 1:
        built = _on_ranks(run, at_work(engine, address, workers, store), tables)
    else:
        built = _on_rank(run, WantedPass(rank, pass_), tables, store)
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
    trace: str | None,
    tables: Sequence[str],
    store: Path | None,
    *,
    demo: bool = False,
    wanted: WantedPass | None = None,
    also: Sequence[str] = (),
) -> Report:
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.build import build_report, import_all
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.threads import BackgroundWorker

    thresholds = nearest_thresholds(here())
    quick_arrow()  # before the thread: where an import fails in one thread, another gets half a module
    with BackgroundWorker() as beside:
        beside.run(import_all)
        opened = open_with_progress(trace, also=also, store=store, demo=demo, wanted=wanted)
    return build_report(opened, thresholds=thresholds, tables=tables, progress=ProgressLine())


def _on_ranks(run: Run, where: Where, tables: Sequence[str]) -> Report:
    from stepscope.cli.progress import ProgressLine
    from stepscope.cluster.reporting import report_on_ranks
    from stepscope.findings.thresholds import nearest_thresholds

    return report_on_ranks(
        run,
        open_run_with_progress(run, where),
        thresholds=nearest_thresholds(here()),
        tables=tables,
        store=where.store,
        progress=ProgressLine(),
    )


def _on_rank(run: Run, wanted: WantedPass, tables: Sequence[str], store: Path | None) -> Report:
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.opening import report_on_run
    from stepscope.runs.choosing import choose_pass, choose_rank

    quick_arrow()
    for note in run.notes:
        notice(note)
    chosen = choose_rank(run, wanted.rank)
    if chosen.light is None and chosen.full is None:
        one = choose_pass(chosen, wanted.name)
        return _on_trace(one.word, tables, store, also=chosen.record.also(one))
    passes = [choose_pass(chosen, wanted.name)] if wanted.name else [chosen.light, chosen.full]
    return report_on_run(
        chosen,
        [one for one in passes if one],
        thresholds=nearest_thresholds(here()),
        tables=tables,
        store=store,
        progress=ProgressLine(),
    )
