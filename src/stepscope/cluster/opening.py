"""From what a user names to a run whose ranks are summarised, and to one table of all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from stepscope import registry
from stepscope.analyses import row_of
from stepscope.cluster.engine import Engine, Outcome
from stepscope.cluster.keeping import KeptRun, Stamp, stamp
from stepscope.cluster.tasks import RankTask, read_table
from stepscope.errors import StepscopeError
from stepscope.runs import Run
from stepscope.runs.finding import find_run
from stepscope.runs.many import FailedRank, ManyRanks
from stepscope.runs.summary import read_summary
from stepscope.store import cache
from stepscope.streams import is_url
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.runs import RankRecord
    from stepscope.runs.summary import RankSummary
    from stepscope.streams import Progress

__all__ = ["EngineName", "Where", "all_ranks", "each_rank", "open_run"]

EngineName = Literal["local", "ray"]

_FEW_RANKS = 4
_FEW_BYTES = 8 << 20
"""So few and small profiles are read by this process sooner than a second one has started."""


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Where the work on ranks is done."""

    engine: EngineName = "local"
    address: str | None = None
    """Of a cluster of Ray; None for the one of $RAY_ADDRESS, or one on this machine."""
    workers: int | None = None
    """How many ranks at a time; None for as many as there are processors and memory."""
    store: Path | None = None
    """Where to keep what was read; None for the cache."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise StepscopeError(f"--workers {self.workers} is no number of workers", exit_code=2)
        if self.address is not None and self.engine != "ray":
            raise StepscopeError(
                "--address is that of a cluster of Ray", hint="add --engine ray", exit_code=2
            )


def open_run(
    words: Run | Sequence[str] | str,
    *,
    engine: EngineName = "local",
    address: str | None = None,
    workers: int | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
) -> ManyRanks:
    """Opens a run: a folder, pattern, URL or list of profiles, one a rank, and summarises every rank.

    Who found the run already gives that in place of words. A rank that cannot be read is told in `failed`;
    the rest stands. What is known from before is read from the cache, and no process is started for it.
    """
    where = Where(engine, address, workers, None if store is None else Path(store))
    run, tasks = _tasks(words, where)
    stamps = _stamps(tasks)
    kept = None
    if stamps is not None:
        kept = KeptRun(run.called, where.store or cache.root(), [text for text, _ in stamps])
        if (known := kept.summaries()) is not None:
            return _together(run, known, (), kept)
    failed: list[FailedRank] = []

    def found() -> Iterator[RankSummary | None]:
        for outcome in _engine(where, tasks, stamps).map(tasks, progress):
            if outcome.payload is None:
                failed.append(_failed(outcome))
                yield None
            else:
                yield read_summary(outcome.payload, outcome.task.source)

    if kept is None:
        return _together(run, [one for one in found() if one], failed, None)
    summaries = kept.collect(found)
    if where.store is None:
        cache.evict(cache.root(), keep=kept.folder)
    return _together(run, summaries, failed, kept)


def each_rank(
    run: Run, where: Where | None = None, *, progress: Progress | None = None
) -> Iterator[tuple[RankRecord, RankSummary | FailedRank]]:
    """The summary of every rank of a run as it comes, or why there is none."""
    where = where or Where()
    _, tasks = _tasks(run, where)
    for outcome in _engine(where, tasks, _stamps(tasks)).map(tasks, progress):
        if outcome.payload is None:
            yield outcome.task.record, _failed(outcome)
        else:
            yield outcome.task.record, read_summary(outcome.payload, outcome.task.source)


def all_ranks(
    words: Run | Sequence[str] | str,
    name: str,
    options: Mapping[str, Any] | None = None,
    where: Where | None = None,
    *,
    progress: Progress | None = None,
) -> Table[Any]:
    """One analysis of every rank, below one another, with the column `rank` first."""
    where = where or Where()
    run, tasks = _tasks(words, where, name, options)
    found: dict[int, Table[Any]] = {}
    row = row_of(registry.load("analyses", name))
    failed: list[FailedRank] = []
    for outcome in _engine(where, tasks, _stamps(tasks)).map(tasks, progress):
        if outcome.payload is None:
            failed.append(_failed(outcome))
        else:
            found[outcome.task.rank] = read_table(outcome.payload, row)
    if not found:
        raise _none_read(run, failed)
    return _stacked(found, (*run.failed, *failed))


def _tasks(
    words: Run | Sequence[str] | str,
    where: Where,
    table: str = "",
    options: Mapping[str, Any] | None = None,
) -> tuple[Run, list[RankTask]]:
    """The run that some words name, and what is to be done for each of its ranks."""
    if isinstance(words, Run):
        run = words
    else:
        run = find_run([words] if isinstance(words, str) else list(words))
    store = None if where.store is None else str(where.store.absolute())
    records = map(_absolute, run.told) if where.engine == "ray" else run.told
    return run, [RankTask(record, store, table, options or {}) for record in records]


def _absolute(record: RankRecord) -> RankRecord:
    """The same rank for somebody in another folder."""
    return dataclasses.replace(
        record,
        path=record.path and record.path.absolute(),
        passes=tuple(
            one if one.url else dataclasses.replace(one, path=one.path.absolute()) for one in record.passes
        ),
        summaries=tuple(map(_absolute_word, record.summaries)),
        beside=tuple(map(_absolute_word, record.beside)),
    )


def _absolute_word(word: str) -> str:
    return word if is_url(word) else str(Path(word).absolute())


def _stamps(tasks: Sequence[RankTask]) -> list[Stamp] | None:
    """What tells these versions of all files from others; None if one of them has nothing that does."""
    found = [stamp(word) for one in tasks for word in one.sources]
    return None if None in found else [one for one in found if one]


def _engine(where: Where, tasks: Sequence[RankTask], stamps: Sequence[Stamp] | None) -> Engine:
    """What does the tasks: for few and small ones, and for what only this process sees, this process."""
    from stepscope.cluster.local import HereEngine, LocalEngine

    if any(word.startswith("memory://") for one in tasks for word in one.sources):
        return HereEngine()
    if where.engine == "ray":
        from stepscope.cluster.ray import RayEngine

        return RayEngine(where.address, where.workers)
    if where.workers == 1 or _are_few(tasks, stamps):
        return HereEngine()
    return LocalEngine(where.workers)


def _are_few(tasks: Sequence[RankTask], stamps: Sequence[Stamp] | None) -> bool:
    """Whether a second process would start no sooner than this one is done."""
    if stamps is None:
        return False
    most = _FEW_BYTES if len(tasks) <= _FEW_RANKS else _FEW_BYTES // 8
    summaries = all(one.record.summaries and not one.table for one in tasks)
    return summaries or sum(size for _, size in stamps) <= most


def _failed(outcome: Outcome) -> FailedRank:
    return FailedRank(outcome.task.rank, outcome.task.source, outcome.error)


def _together(
    run: Run, found: Sequence[RankSummary], failed: Sequence[FailedRank], kept: KeptRun | None
) -> ManyRanks:
    if not found:
        raise _none_read(run, failed)
    ordered = sorted(found, key=lambda one: one.facts.rank)
    lost = sorted((*run.failed, *failed), key=lambda one: (one.rank is None, one.rank or 0))
    return ManyRanks(
        name=run.called,
        summaries=ordered,
        world_size=run.world_size,
        failed=tuple(lost),
        notes=run.notes,
        shelf=kept,
    )


def _none_read(run: Run, failed: Sequence[FailedRank]) -> StepscopeError:
    if not failed:
        return StepscopeError(f"no rank of {run.called} has a profile", hint=f"record again: {run.again}")
    first = failed[0]
    return StepscopeError(
        f"none of the {len(failed)} ranks of {run.called} could be read; rank {first.rank}: {first.reason}",
        hint=f"look at one of them: stepscope info {first.source}",
    )


def _stacked(found: Mapping[int, Table[Any]], failed: Sequence[FailedRank]) -> Table[Any]:
    """The tables of ranks below one another; what has to be said beside them is said once."""
    import pyarrow as pa

    parts = []
    notes: dict[str, list[int]] = {}
    for rank in sorted(found):
        arrow = found[rank].arrow
        column = pa.repeat(pa.scalar(rank, pa.int64()), arrow.num_rows)
        if "rank" in arrow.column_names:
            arrow = arrow.drop_columns(["rank"])
        parts.append(arrow.add_column(0, pa.field("rank", pa.int64(), nullable=False), column))
        for note in found[rank].notes:
            notes.setdefault(note, []).append(rank)
    said = [note if len(ranks) == len(found) else f"{_ranks(ranks)}: {note}" for note, ranks in notes.items()]
    said += [
        f"{one.source if one.rank is None else f'Rank {one.rank}'} could not be read: {one.reason}."
        for one in failed
    ]
    row = next(iter(found.values())).row
    return Table(_with_rank(row), pa.concat_tables(parts), said)


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    listed = ", ".join(map(str, ranks[:8]))
    return f"Ranks {listed}" + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _with_rank(row: type) -> type:
    """Rows with the column `rank` in front."""
    hints = get_type_hints(row, include_extras=True)
    fields = [(one.name, hints[one.name]) for one in dataclasses.fields(row) if one.name != "rank"]
    rank = ("rank", Annotated[int, "The rank."])
    made = dataclasses.make_dataclass(row.__name__, [rank, *fields], frozen=True, slots=True)
    made.__doc__ = row.__doc__
    return made
