"""Prints one analysis of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from stepscope import registry
from stepscope.cli import output
from stepscope.cli.signature import with_options_of
from stepscope.cli.traces import (
    AddressOption,
    EngineOption,
    PassOption,
    RanksOption,
    WantedPass,
    WorkersOption,
    at_work,
    open_run_with_progress,
    open_with_progress,
)
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.cluster.opening import Where
    from stepscope.runs import PassName
    from stepscope.tables import Table

__all__ = ["show"]

_FOLDERS = ("analyses", "runs.analyses")


@with_options_of(_FOLDERS, "name")
def show(
    name: Annotated[str | None, "the analysis; without a name, all are listed"] = None,
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    format: Annotated[
        Literal["table", "csv", "json", "markdown", "parquet"], "how to write the rows"
    ] = "table",
    limit: Annotated[int | None, "at most this many rows"] = None,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RanksOption = None,
    pass_: PassOption = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    **options: Any,
) -> None:
    """Prints one analysis of a trace as a table, CSV, JSON, Markdown or Parquet.

    `stepscope show NAME --help` lists the options of that analysis, `stepscope explain NAME` its columns.
    Some analyses are of a run of several ranks. `--rank all` shows any other for every rank of a run.
    """
    if name is None:
        output.put(_listing())
        return
    folder = registry.among(_FOLDERS, name)
    word = "TRACE" if folder == "analyses" else "RUN"
    if trace is None and not demo:
        problem = (
            f"show {name} needs a {'trace' if word == 'TRACE' else 'run: a folder with a profile per rank'}"
        )
        raise StepscopeError(problem, hint=f"stepscope show {name} {word}", exit_code=2)
    if format == "parquet" and output.is_terminal():
        raise StepscopeError(
            "Parquet is binary and cannot go to a terminal", hint=f"add > {name}.parquet", exit_code=2
        )
    if limit is not None and limit < 0:
        raise StepscopeError(f"--limit {limit} is negative", exit_code=2)
    from stepscope.present import grids

    where = at_work(engine, address, workers, store)
    if folder == "runs.analyses":
        _check_run(name, demo=demo, rank=rank, pass_=pass_)
        table = open_run_with_progress(str(trace), where).table(name, **options)
    elif rank == "all":
        table = _of_all(name, str(trace), options, where, demo=demo, pass_=pass_)
    else:
        table = _of_one(name, trace, options, WantedPass(rank, pass_), store=store, demo=demo)
    if format == "parquet":
        _put_parquet(table, limit)
        return
    width, color = output.width(), output.color()
    output.put(grids.render(table, name, format, width=width, color=color, limit=limit))


def _put_parquet(table: Table[Any], limit: int | None) -> None:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table.arrow.slice(0, limit), output.binary(), compression="zstd")


def _of_one(
    name: str,
    trace: str | None,
    options: dict[str, Any],
    wanted: WantedPass,
    *,
    store: Path | None,
    demo: bool,
) -> Table[Any]:
    from stepscope.runs.needs import needed_by_analysis

    wanted = replace(wanted, needed=needed_by_analysis(name, options))
    found: Table[Any] = registry.load("analyses", name)(
        open_with_progress(trace, store=store, demo=demo, wanted=wanted), **options
    )
    return found


def _of_all(
    name: str, run: str, options: dict[str, Any], where: Where, *, demo: bool, pass_: PassName | None
) -> Table[Any]:
    from stepscope.cli.progress import ProgressLine
    from stepscope.cluster.opening import all_ranks

    _check_run(name, demo=demo, rank=None, pass_=pass_)
    return all_ranks(run, name, options, where, progress=ProgressLine())


def _check_run(name: str, *, demo: bool, rank: int | str | None, pass_: PassName | None) -> None:
    """Refuses what chooses one profile where all ranks are asked for."""
    for option, given in (("--demo", demo), ("--rank", rank is not None), ("--pass", pass_ is not None)):
        if given:
            raise StepscopeError(
                f"show {name} is about all ranks of a run, so {option} has nothing to choose",
                hint=f"stepscope show {name} RUN",
                exit_code=2,
            )


def _listing() -> str:
    own, of_runs = (registry.names(folder, installed=True) for folder in _FOLDERS)
    width = max((len(name) for name, _ in (*own, *of_runs)), default=0)
    lines = [f"{name:<{width}}  {first_line}" for name, first_line in own]
    if of_runs:
        lines += ["", "of a run of several ranks:"]
        lines += [f"{name:<{width}}  {first_line}" for name, first_line in of_runs]
    return "".join(f"{line}\n" for line in lines)
