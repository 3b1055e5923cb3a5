"""Links and nesting, made when a profile has been read: work to launch, launch and operator to operator.

Operators, launches and device work wait in staging files, uncompressed, in runs of one thread sorted by time.
Then each thread's runs are merged and swept, and the rows go to their final tables with what was found out.
Memory is bounded by a batch of every run that is open at the same time, whatever the size of the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import StoredTable
from stepscope.store.columns import ROW_GROUP, arrow_schema, integers, nullable, parquet_writer, view

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

__all__ = ["Run", "Staged", "sweep_thread", "write_linked"]

PIECE = 1 << 16
FOREVER = 2**63 - 1
_OPS, _LAUNCHES = 0, 1


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one thread's events, sorted by time, that is read piece by piece."""

    min_start: int
    pieces: Iterator[tuple[memoryview, memoryview, memoryview, list[memoryview]]]
    table: int
    opens: bool
    marks: bool = False
    covers: bool = False
    weight: int = -1
    group: int = -1


class Staged:
    """A table that waits for its links: an Arrow file of pieces, each of one thread."""

    def __init__(self, folder: Path, table: StoredTable) -> None:
        import pyarrow as pa

        self.table = table
        self.path = folder / f"staged-{table.name}.arrow"
        self.runs: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        self.first_rows: list[int] = []
        self._rows = 0
        self._schema = arrow_schema(table.all_columns[: 6 + len(table.columns)])
        self._writer = pa.ipc.new_file(self.path, self._schema)

    def add(self, records: pa.RecordBatch, runs: list[tuple[int, int, int, int]]) -> None:
        """Keeps a sorted batch, cut by thread."""
        for thread, first, rows, min_start in runs:
            pieces = []
            for at in range(first, first + rows, PIECE):
                piece = records.slice(at, min(PIECE, first + rows - at))
                self._writer.write_batch(piece)
                pieces.append(len(self.first_rows))
                self.first_rows.append(self._rows)
                self._rows += piece.num_rows
            self.runs[thread].append((min_start, pieces))

    def close(self) -> None:
        """Ends writing; from now on pieces can be read."""
        import pyarrow as pa

        self._writer.close()
        self._file = pa.OSFile(str(self.path))
        self._reader = pa.ipc.open_file(self._file)

    def piece(self, number: int) -> pa.RecordBatch:
        """One piece, read from disk."""
        return self._reader.get_batch(number)

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """All pieces, in the order in which they were kept."""
        return (self.piece(number) for number in range(len(self.first_rows)))

    def remove(self) -> None:
        """Deletes the staging file."""
        self._file.close()
        self.path.unlink()


def sweep_thread(sweep: _native.ThreadSweep, runs: list[Run], flush: Callable[[], None]) -> None:
    """Merges one thread's runs; a run is opened only when the sweep gets near its first event."""
    waiting = sorted(runs, key=lambda run: run.min_start, reverse=True)
    pieces: dict[int, Iterator[Any]] = {}
    while True:
        hungry = sweep.advance(waiting[-1].min_start if waiting else FOREVER)
        if hungry >= 0:
            piece = next(pieces[hungry], None)
            if piece is None:
                sweep.end_run(hungry)
            else:
                sweep.give(hungry, *piece)
            flush()
        elif waiting:
            run = waiting.pop()
            number = sweep.add_run(run.table, run.opens, run.marks, run.covers, run.weight, run.group)
            pieces[number] = run.pieces
        else:
            break
    sweep.finish_thread()
    flush()


def write_linked(folder: Path, staged: dict[str, Staged]) -> None:
    """Sweeps what was staged and writes the three linked tables."""
    ops, launches, work = staged["ops"], staged["launches"], staged["device_work"]
    linker = _native.Linker()
    for piece in launches.pieces():
        linker.add(view(piece["correlation"]), view(piece["start_ns"]), view(piece["event"]))
    linker.build()
    # Which launch every piece of work belongs to: four bytes a row are kept, the rest is read again.
    links = [
        linker.link(view(piece["correlation"]), view(piece["start_ns"]), view(piece["dur_ns"]))
        for piece in work.pieces()
    ]
    _write_host(folder, ops, launches, linker)
    _write_work(folder, work, links, linker)
    for table in staged.values():
        table.remove()


def _write_host(folder: Path, ops: Staged, launches: Staged, linker: _native.Linker) -> None:
    sweep = _native.ThreadSweep([len(_payload(ops.table)), 2 + len(_payload(launches.table))])
    with (
        parquet_writer(folder / "ops.parquet", ops.table.all_columns) as ops_file,
        parquet_writer(folder / "launches.parquet", launches.table.all_columns) as launches_file,
        _Aside() as aside,
    ):

        def flush(least: int = ROW_GROUP) -> None:
            if sweep.rows(_OPS) >= least:
                found = sweep.take(_OPS)
                aside.run(lambda: ops_file.write_table(_ops_rows(found, ops), row_group_size=ROW_GROUP))
            if sweep.rows(_LAUNCHES) >= least:
                calls = sweep.take(_LAUNCHES)
                rows = _launch_rows(calls, launches, linker)
                aside.run(lambda: launches_file.write_table(rows(), row_group_size=ROW_GROUP))

        for thread in sorted({*ops.runs, *launches.runs}):
            sweep_thread(sweep, _host_runs(thread, ops, launches, linker), flush)
        flush(least=1)


def _host_runs(thread: int, ops: Staged, launches: Staged, linker: _native.Linker) -> list[Run]:
    runs = [
        Run(start, _op_pieces(ops, pieces), _OPS, opens=True, group=0)
        for start, pieces in ops.runs.get(thread, [])
    ]
    return runs + [
        Run(start, _launch_pieces(launches, pieces, linker), _LAUNCHES, opens=False, covers=True, weight=1)
        for start, pieces in launches.runs.get(thread, [])
    ]


class _Aside:
    """Does one thing at a time in another thread, while this one goes on; what fails is raised here."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "write")
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        if self._last:
            self._last.result()

    def run(self, job: Callable[[], None]) -> None:
        """Waits for the last job, then starts this one."""
        if self._last:
            self._last.result()
        self._last = self._pool.submit(job)


def _payload(table: StoredTable) -> list[str]:
    """The columns that travel through the sweep unread: all but event, start and duration."""
    return ["name", "thread", "shape", *(column.name for column in table.columns)]


def _op_pieces(ops: Staged, numbers: list[int]) -> Iterator[Any]:
    for number in numbers:
        piece = ops.piece(number)
        payload = [view(piece[name]) for name in _payload(ops.table)]
        yield view(piece["event"]), view(piece["start_ns"]), view(piece["dur_ns"]), payload


def _launch_pieces(launches: Staged, numbers: list[int], linker: _native.Linker) -> Iterator[Any]:
    for number in numbers:
        piece = launches.piece(number)
        rows, _, work_ns = linker.loads(launches.first_rows[number], piece.num_rows)
        payload = [rows, work_ns, *(view(piece[name]) for name in _payload(launches.table))]
        yield view(piece["event"]), view(piece["start_ns"]), view(piece["dur_ns"]), payload


def _sorted(table: StoredTable, columns: dict[str, Any]) -> pa.Table:
    """Rows by thread and time: the sweep gives them in the order in which they ended."""
    import pyarrow as pa

    schema = arrow_schema(table.all_columns)
    arrays = [columns[field.name].cast(field.type) for field in schema]
    rows = pa.Table.from_arrays(arrays, schema=schema)
    return rows.sort_by([("thread", "ascending"), ("start_ns", "ascending"), ("dur_ns", "descending")])


def _ops_rows(found: dict[str, Any], ops: Staged) -> pa.Table:
    import pyarrow as pa

    columns = {
        "event": integers(found["event"]),
        "start_ns": nullable(found["start"]),
        "dur_ns": nullable(found["dur"]),
        "parent": nullable(found["inside"]),
        "depth": integers(found["depth"], pa.int32()),
        "self_ns": integers(found["self"]),
        "self_no_runtime_ns": integers(found["uncovered"]),
        "total_once_ns": integers(found["fresh"]),
        "device_self_ns": integers(found["weight_self"]),
        "device_once_ns": integers(found["weight_once"]),
    }
    columns.update(
        (name, nullable(values)) for name, values in zip(_payload(ops.table), found["payload"], strict=True)
    )
    return _sorted(ops.table, columns)


def _launch_rows(found: dict[str, Any], launches: Staged, linker: _native.Linker) -> Callable[[], pa.Table]:
    """Tells the linker which operators the launches are in, and how to make the rows."""
    rows, work_ns, *payload = found["payload"]
    linker.note_ops(rows, found["inside"])
    columns = {
        "event": integers(found["event"]),
        "start_ns": nullable(found["start"]),
        "dur_ns": nullable(found["dur"]),
        "op": nullable(found["inside"]),
        "work_events": integers(linker.counts(rows)),
        "work_ns": integers(work_ns),
    }
    columns.update(
        (name, nullable(values)) for name, values in zip(_payload(launches.table), payload, strict=True)
    )
    return lambda: _sorted(launches.table, columns)


def _write_work(folder: Path, work: Staged, links: list[memoryview], linker: _native.Linker) -> None:
    import pyarrow as pa

    schema = arrow_schema(work.table.all_columns)
    with parquet_writer(folder / "device_work.parquet", work.table.all_columns) as file:
        waiting: list[pa.RecordBatch] = []
        for number, piece in enumerate(work.pieces()):
            launch, op = linker.ends(links[number])
            arrays = [*piece.columns, nullable(launch), nullable(op)]
            waiting.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
                file.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP)
                waiting = []
        if waiting:
            file.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP)
