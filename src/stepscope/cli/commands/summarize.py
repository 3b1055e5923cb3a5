"""Writes what the head of a run needs to know of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stepscope import units
from stepscope.cli.output import binary, notice, say
from stepscope.cli.signature import Written
from stepscope.cli.traces import AddressOption, EngineOption, WorkersOption, at_work, open_with_progress
from stepscope.errors import StepscopeError
from stepscope.runs import FailedRank
from stepscope.writing import written

if TYPE_CHECKING:
    from stepscope.cluster.opening import Where
    from stepscope.runs import RankRecord
    from stepscope.runs.summary import RankSummary

__all__ = ["summarize"]


def summarize(
    profiles: Annotated[tuple[str, ...], "a profile, or the folder, pattern or profiles of a run"],
    *,
    output: Annotated[
        Path | None, Written(), "-o", "the file to write; default: rankN.summary beside the profile"
    ] = None,
    host: Annotated[
        str | None, "name of the machine that recorded it, which profiles do not have: $(hostname)"
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> int:
    """Writes what a report on many ranks needs to know of each, in a few megabytes at most.

    Type it where the profiles lie, as on every node of a cluster, and copy the files rankN.summary into one
    folder: stepscope report FOLDER then reads them in place of the profiles, which need not travel.
    """
    where = at_work(engine, address, workers, store)
    wrote, failed = 0, 0
    for name, beside, made in _summaries(profiles, output, where):
        if isinstance(made, FailedRank):
            notice(f"{name}: {made.reason}")
            failed += 1
            continue
        facts = replace(made.facts, host=host or made.facts.host)
        _write(replace(made, facts=facts), output, beside)
        wrote += 1
    if not wrote:
        raise StepscopeError("no rank could be summarised", hint="stepscope info PROFILE says what is wrong")
    return 1 if failed else 0


def _summaries(
    words: tuple[str, ...], output: Path | None, where: Where
) -> Iterator[tuple[str, Path, RankSummary | FailedRank]]:
    """What each rank is called, the folder of its profile, and its summary or what is wrong with it."""
    from stepscope.cli.progress import ProgressLine
    from stepscope.cluster.opening import each_rank
    from stepscope.runs.finding import find_run, is_one_profile
    from stepscope.runs.summarizing import kept_summary

    if len(words) == 1 and is_one_profile(words[0]):
        trace = open_with_progress(words[0], store=where.store)
        place = Path(words[0])
        yield words[0], place.parent if place.is_file() else Path(), kept_summary(trace)
        return
    run = find_run(words, summaries=False)
    for note in run.notes:
        notice(note)
    if output is not None and len(run.profiled) > 1:
        raise StepscopeError(
            f"{units.count(len(run.profiled))} ranks do not fit into one file",
            hint="leave -o out: a file for each is written beside its profile",
            exit_code=2,
        )
    for record, made in each_rank(run, where, progress=ProgressLine()):
        yield f"rank {record.rank}", _folder(record), made


def _folder(record: RankRecord) -> Path:
    first = record.spans[0]
    return Path() if first.url else first.path.parent


def _write(made: RankSummary, output: Path | None, beside: Path) -> None:
    from stepscope.runs.summary import is_summary, written_summary

    content = written_summary(made)
    told = f"rank {made.facts.rank}, {units.counted(len(made.tables['steps']), 'step')}, "
    told += f"{units.counted(len(made.tables['calls']), 'collective')}, {units.size(len(content))}"
    if str(output) == "-":
        binary().write(content)
        notice(told)
        return
    path = output or beside / f"rank{made.facts.rank}.summary"
    if output is None and path.exists():
        with path.open("rb") as file:
            if not is_summary(file.read(64)):
                raise StepscopeError(f"{path} is there and is no summary", hint="name another file: -o FILE")
    with written(path) as file:
        file.write(content)
    say(f"{path}: {told}")
    for note in made.facts.notes:
        notice(note)
