"""Where the events of a thread lie: stretches of rows, sorted by time, in the row groups of the files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from stepscope import _native
from stepscope.store.columns import ROW_GROUP
from stepscope.store.sums import StoreFiles

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Stretch", "WrittenRows", "merge_runs", "read_stretch", "stretches_by_thread"]

_PIECE = 1 << 15
_FOREVER = (1 << 63) - 1


class Stretch(NamedTuple):
    """Rows of one thread, sorted by time, in a row group."""

    table: str
    group: int
    first: int
    rows: int
    start: int
    """When the first of them starts."""


class WrittenRows:
    """Notes where the rows of one table lie while they are written."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._groups = 0
        self.runs: list[tuple[str, int, int, int, int, int | None]] = []
        """Rows of the table `runs`."""

    def add(self, threads: Iterable[tuple[int, int]], starts: pa.Array | pa.ChunkedArray) -> None:
        """Rows that are written at once: of which thread so many are, one thread after the other."""
        at = 0
        for thread, rows in threads:
            end = at + rows
            while at < end:
                here = min(end - at, ROW_GROUP - at % ROW_GROUP)
                group = self._groups + at // ROW_GROUP
                self.runs.append((self._table, group, thread, at % ROW_GROUP, here, starts[at].as_py()))
                at += here
        self._groups -= -at // ROW_GROUP

    def add_sorted(self, rows: pa.RecordBatch) -> None:
        """Rows that are sorted by thread and time."""
        import pyarrow.compute as pc

        of = rows["thread"]
        if rows.num_rows and of[0] == of[-1]:  # as mostly, and cheaper to see
            self.add([(of[0].as_py(), rows.num_rows)], rows["start_ns"])
            return
        counted = pc.value_counts(of)
        threads, counts = (counted.field(name).to_pylist() for name in ("values", "counts"))
        self.add(zip(threads, counts, strict=True), rows["start_ns"])


def stretches_by_thread(store: Path, tables: Container[str]) -> dict[int, list[Stretch]]:
    """For each thread its stretches in some tables."""
    found: defaultdict[int, list[Stretch]] = defaultdict(list)
    stored = StoreFiles(store).arrow("runs").read_all()
    for name, group, thread, first, rows, start in zip(*(c.to_pylist() for c in stored.columns), strict=True):
        if name in tables:
            found[thread].append(Stretch(name, group, first, rows, _native.NULL if start is None else start))
    return found


def read_stretch(file: Any, of: Stretch, columns: list[str], piece: int = _PIECE) -> Iterator[Any]:
    """A stretch of rows piece by piece; only the columns that are asked for are read."""
    at, end = 0, of.first + of.rows
    for batch in file.iter_batches(min(piece, end), row_groups=[of.group], columns=columns):
        low, high = max(of.first - at, 0), min(end - at, batch.num_rows)
        at += batch.num_rows
        if low >= high:
            continue
        yield batch.slice(low, high - low)
        if at >= end:
            return


class Started(Protocol):
    """Rows of one thread that are sorted by time."""

    @property
    def start(self) -> int:
        """When the first of them starts."""


class Sweep(Protocol):
    """What merges the rows of a thread, in the native core."""

    def advance(self, until: int) -> int:
        """Merges what starts before; the number of a run that must give more first, or -1."""

    def give(self, run: int, /, *piece: Any) -> None:
        """More rows of a run."""

    def end_run(self, run: int) -> None:
        """A run has no more rows."""


_Run = TypeVar("_Run", bound=Started)


def merge_runs(
    sweep: Sweep,
    runs: Iterable[_Run],
    opened: Callable[[_Run], tuple[int, Iterator[Any]]],
    given: Callable[[Any], None],
) -> None:
    """Merges runs of rows; one is opened only when the sweep gets near its first event.

    `opened` adds a run to the sweep and returns its number and its pieces. `given` is called after each
    piece, and with None after the last of a run.
    """
    waiting = sorted(runs, key=lambda run: run.start, reverse=True)
    pieces: dict[int, Iterator[Any]] = {}
    while True:
        hungry = sweep.advance(waiting[-1].start if waiting else _FOREVER)
        if hungry >= 0:
            piece = next(pieces[hungry], None)
            if piece is None:
                sweep.end_run(hungry)
                del pieces[hungry]
            else:
                sweep.give(hungry, *piece)
            given(piece)
        elif waiting:
            number, of_run = opened(waiting.pop())
            pieces[number] = of_run
        else:
            return
