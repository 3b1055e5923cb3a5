"""Links and nesting, made when a profile has been read: work to launch, launch and operator to operator.

Operators, launches and device work wait in runs of one thread sorted by time: the first of them in memory,
more of them in staging files, uncompressed. Then each thread's runs are merged and swept, and the rows go to
their final tables with what was found out. Memory is bounded by what may wait there and by a batch of every
run that is open at the same time, whatever the size of the trace.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.records import dataclass
from stepscope.schema import StoredTable
from stepscope.store.columns import (
    ROW_GROUP,
    array_of,
    arrow_schema,
    bits_of,
    nulls,
    parquet_writer,
    record_batch,
    repeated,
    view,
)
from stepscope.store.rows import constant_of
from stepscope.store.stretches import WrittenRows, merge_runs
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Run", "Staged", "sweep_thread", "write_linked"]

PIECE = 1 << 16
IN_MEMORY = 4 << 20  # bytes of a table; what comes after them waits on disk
_OPS, _LAUNCHES = 0, 1
_NARROW = 3  # name, thread and skeleton are stored as int32


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of one thread's events, sorted by time, that is read piece by piece."""

    start: int
    pieces: Iterator[tuple[memoryview, memoryview, memoryview, Sequence[memoryview | None]]]
    table: int
    opens: bool
    marks: bool = False
    covers: bool = False
    weight: int = -1
    group: int = -1
    label: int = -1


class Staged:
    """A table that waits for its links, in pieces, each of one thread: in memory, then in a file.

    Numbers are kept in as few bytes as those of a piece need: a quarter of what they take otherwise.
    """

    def __init__(self, folder: Path, table: StoredTable) -> None:
        self.table = table
        self.path = folder / f"staged-{table.name}"
        self.runs: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
        self.first_rows: list[int] = []
        self.longest_ns: list[int] = []
        """The longest duration in each piece."""
        self.rows = 0
        self.whole = {column.name for column in table.read_columns}
        """Columns in which no row has NULL."""
        self.packed_bytes = 0
        """What all pieces take, in memory and in the file."""
        self._pieces: list[memoryview | tuple[int, int]] = []
        """Each piece, or where it begins and ends in the file."""
        self._file: Any = None

    def add(self, records: pa.RecordBatch, runs: list[tuple[int, int, int, int]]) -> None:
        """Keeps a sorted batch, cut by thread."""
        import pyarrow.compute as pc

        self.whole -= {name for name in self.whole if records[name].null_count}
        for thread, first, rows, start in runs:
            pieces = []
            for at in range(first, first + rows, PIECE):
                piece = records.slice(at, min(PIECE, first + rows - at))
                pieces.append(len(self._pieces))
                self._keep(_native.packed([bits_of(column) for column in piece.columns], piece.num_rows))
                self.first_rows.append(self.rows)
                self.longest_ns.append(pc.max(piece["dur_ns"]).as_py() or 0)
                self.rows += piece.num_rows
            self.runs[thread].append((start, pieces))

    def _keep(self, packed: memoryview) -> None:
        self.packed_bytes += len(packed)
        if self._file is None and self.packed_bytes <= IN_MEMORY:
            self._pieces.append(packed)
            return
        if self._file is None:
            self._file = self.path.open("wb")
        place = self._file.tell()
        self._file.write(packed)
        self._pieces.append((place, place + len(packed)))

    def close(self) -> None:
        """Ends writing; from now on pieces can be read."""
        self._schema = arrow_schema(self.table.read_columns)
        if self._file is not None:
            self._file.close()
            self._file = self.path.open("rb", buffering=0)

    def rows_of(self, number: int) -> int:
        """How many rows a piece has."""
        end = self.first_rows[number + 1] if number + 1 < len(self.first_rows) else self.rows
        return end - self.first_rows[number]

    def piece(self, number: int, *names: str) -> pa.RecordBatch:
        """One piece, from memory or from disk: all columns, or those that are named."""
        import pyarrow as pa

        packed: memoryview | bytes | tuple[int, int] = self._pieces[number]
        if isinstance(packed, tuple):
            packed = os.pread(self._file.fileno(), packed[1] - packed[0], packed[0])
        fields = [field for field in self._schema if field.name in names or not names]
        rows = self.rows_of(number)
        wanted = [(self._schema.get_field_index(field.name), field.type.bit_width) for field in fields]
        found = _native.unpacked(packed, len(packed), len(self._schema), rows, wanted)
        arrays = [array_of(field.type, column, rows) for field, column in zip(fields, found, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def pieces(self, *names: str) -> Iterator[pa.RecordBatch]:
        """All pieces, in the order in which they were kept."""
        return (self.piece(number, *names) for number in range(len(self._pieces)))

    def remove(self) -> None:
        """Lets go of the rows, and deletes the staging file."""
        self._pieces.clear()
        if self._file is not None:
            self._file.close()
            self.path.unlink()


def sweep_thread(sweep: _native.ThreadSweep, runs: list[Run], flush: Callable[[], None]) -> None:
    """Merges one thread's runs and ends it."""

    def opened(run: Run) -> tuple[int, Iterator[Any]]:
        number = sweep.add_run(run.table, run.opens, run.marks, run.covers, run.weight, run.group, run.label)
        return number, run.pieces

    merge_runs(sweep, runs, opened, lambda _: flush())
    sweep.finish_thread()
    flush()


def write_linked(
    folder: Path, staged: dict[str, Staged], written: dict[str, WrittenRows], clipped: dict[int, pa.Array]
) -> None:
    """Sweeps what was staged and writes the three linked tables.

    `written` is told where the rows lie. `clipped` has the durations to take in place of those of some pieces
    of device work.
    """
    ops, launches, work = staged["ops"], staged["launches"], staged["device_work"]
    linker = _native.Linker(launches.rows)
    for piece in launches.pieces("correlation", "start_ns", "event"):
        linker.add(view(piece["correlation"]), view(piece["start_ns"]), view(piece["event"]))
    linker.build()
    # Which launch every piece of work belongs to: four bytes a row are kept, the rest is read again.
    links = [
        linker.link(
            view(piece["correlation"]), view(piece["start_ns"]), view(clipped.get(number, piece["dur_ns"]))
        )
        for number, piece in enumerate(work.pieces("correlation", "start_ns", "dur_ns"))
    ]
    linker.end_links()
    with BackgroundWorker() as aside:
        _write_host(folder, (ops, launches), linker, written, aside)
        # Beside the last rows of the host.
        _write_work(folder, work, links, linker, written["device_work"], clipped)
    for table in staged.values():
        table.remove()


def _write_host(
    folder: Path,
    host: tuple[Staged, Staged],
    linker: _native.Linker,
    written: dict[str, WrittenRows],
    aside: BackgroundWorker,
) -> None:
    ops, launches = host
    carried = [len(_payload(ops.table)), 3 + len(_payload(launches.table))]
    sweep = _native.ThreadSweep(carried, only_inside=[_LAUNCHES])
    ops_file, launches_file = (
        parquet_writer(folder / f"{one.table.name}.parquet", one.table.all_columns, whole=_swept_whole(one))
        for one in host
    )

    def flush(least: int = ROW_GROUP) -> None:
        if sweep.rows(_OPS) >= least:
            operators = _ops_rows(sweep.take(_OPS, _NARROW, _is_whole(ops)), ops)
            written["ops"].add_sorted(operators)
            aside.run(partial(ops_file.write_batch, operators, row_group_size=ROW_GROUP))
        if sweep.rows(_LAUNCHES) >= least:
            calls = _launch_rows(sweep.take(_LAUNCHES, _NARROW, _is_whole(launches)), launches, linker)
            written["launches"].add_sorted(calls)
            aside.run(partial(launches_file.write_batch, calls, row_group_size=ROW_GROUP))

    for thread in sorted({*ops.runs, *launches.runs}):
        sweep_thread(sweep, _host_runs(thread, ops, launches, linker), flush)
    flush(least=1)
    aside.run(ops_file.close)
    aside.run(launches_file.close)


def _host_runs(thread: int, ops: Staged, launches: Staged, linker: _native.Linker) -> list[Run]:
    runs = [
        Run(start, _op_pieces(ops, pieces), _OPS, opens=True, group=0)
        for start, pieces in ops.runs.get(thread, [])
    ]
    return runs + [
        Run(
            start,
            _launch_pieces(launches, pieces, linker),
            _LAUNCHES,
            opens=False,
            covers=True,
            weight=_NARROW + 1,
        )
        for start, pieces in launches.runs.get(thread, [])
    ]


def _swept_whole(staged: Staged) -> set[str]:
    """Columns without NULL after the sweep, to which the smallest number is NULL: these never have it."""
    return staged.whole & {"name", "start_ns", "dur_ns"}


def _is_whole(staged: Staged) -> bool:
    """Whether all rows have times and a name; they always have a thread and a skeleton."""
    return {"name", "start_ns", "dur_ns"} <= staged.whole


def _payload(table: StoredTable) -> list[str]:
    """The columns that travel through the sweep unread: all but event, start and duration."""
    return ["name", "thread", "skeleton", *(column.name for column in table.columns)]


def _op_pieces(ops: Staged, numbers: list[int]) -> Iterator[Any]:
    for number in numbers:
        piece = ops.piece(number)
        yield *_times(piece), _carried(piece, ops.table)


def _launch_pieces(launches: Staged, numbers: list[int], linker: _native.Linker) -> Iterator[Any]:
    for number in numbers:
        piece = launches.piece(number)
        payload = _carried(piece, launches.table)
        payload[_NARROW:_NARROW] = linker.loads(launches.first_rows[number], piece.num_rows)
        yield *_times(piece), payload


def _times(piece: pa.RecordBatch) -> tuple[memoryview, memoryview, memoryview]:
    return view(piece["event"]), view(piece["start_ns"]), view(piece["dur_ns"])


def _carried(piece: pa.RecordBatch, table: StoredTable) -> list[memoryview | None]:
    """What travels through the sweep; None for columns in which there is nothing, which then cost nothing."""
    names = _payload(table)
    empty = [piece[name].null_count == piece.num_rows for name in names[_NARROW:]]
    wide = [
        None if nothing else view(piece[name]) for name, nothing in zip(names[_NARROW:], empty, strict=True)
    ]
    return [*(_widened(piece[name]) for name in names[:_NARROW]), *wide]


def _widened(column: pa.Array) -> memoryview:
    """A narrow column; where all rows have one number, as of their thread, nothing is copied."""
    import pyarrow as pa

    only = constant_of(column)
    if only is None or only[0] is None:
        return view(column)
    return view(repeated(only[0], len(column), pa.int64()))


def _ops_rows(found: dict[str, Any], ops: Staged) -> pa.RecordBatch:
    columns = dict(zip(_payload(ops.table), found["payload"], strict=True))
    columns |= {
        "event": found["event"],
        "start_ns": found["start"],
        "dur_ns": found["dur"],
        "parent": found["inside"],
        "depth": found["depth"],
        "self_ns": found["self"],
        "self_no_runtime_ns": found["uncovered"],
        "total_once_ns": found["fresh"],
        "device_self_ns": found["weight_self"],
        "device_once_ns": found["weight_once"],
    }
    return _records(ops, columns)


def _launch_rows(found: dict[str, Any], launches: Staged, linker: _native.Linker) -> pa.RecordBatch:
    """The rows of launches; the linker is told which operators they are in."""
    payload = found["payload"]
    row, work_ns, work_events = payload[_NARROW : _NARROW + 3]
    del payload[_NARROW : _NARROW + 3]
    linker.note_ops(row[0], found["inside"][0])
    columns = dict(zip(_payload(launches.table), payload, strict=True))
    columns |= {
        "event": found["event"],
        "start_ns": found["start"],
        "dur_ns": found["dur"],
        "op": found["inside"],
        "work_events": work_events,
        "work_ns": work_ns,
    }
    return _records(launches, columns)


def _records(staged: Staged, columns: dict[str, Any]) -> pa.RecordBatch:
    schema = arrow_schema(staged.table.all_columns, _swept_whole(staged))
    return record_batch(schema, [columns[name] for name in schema.names])


def _write_work(
    folder: Path,
    work: Staged,
    links: list[memoryview],
    linker: _native.Linker,
    written: WrittenRows,
    clipped: dict[int, pa.Array],
) -> None:
    import pyarrow as pa

    def write() -> None:
        rows = pa.Table.from_batches(waiting)
        file.write_table(rows, row_group_size=ROW_GROUP)
        written.add(_by_thread(waiting), rows["start_ns"])

    schema, added = arrow_schema(work.table.all_columns, work.whole), arrow_schema(work.table.linked[:2])
    with parquet_writer(folder / "device_work.parquet", work.table.all_columns, whole=work.whole) as file:
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for number, piece in enumerate(work.pieces()):
            launch, op = linker.ends(links[number])
            linked = record_batch(added, [launch, op])
            columns = [*piece.columns, *linked.columns, nulls(piece.num_rows, pa.int64())]
            if number in clipped:
                columns = _with_clipped(columns, schema.get_field_index("dur_ns"), clipped[number])
            waiting.append(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows += piece.num_rows
            if rows >= ROW_GROUP:
                write()
                waiting, rows = [], 0
        if waiting:
            write()


def _by_thread(pieces: list[pa.RecordBatch]) -> Iterator[tuple[int, int]]:
    """Threads and how many rows are theirs; pieces of a thread that follow one another in time are one."""
    thread, rows, reached = -1, 0, None
    for piece in pieces:
        starts, of = piece["start_ns"], piece["thread"][0].as_py()
        first, last = starts[0].as_py(), starts[-1].as_py()
        if of != thread or reached is None or first is None or first < reached:
            if rows:
                yield thread, rows
            thread, rows = of, 0
        rows, reached = rows + piece.num_rows, last
    yield thread, rows


def _with_clipped(columns: list[pa.Array], place: int, clipped: pa.Array) -> list[pa.Array]:
    """The columns of a piece with its clipped durations; what the profile said is kept at the end."""
    import pyarrow as pa
    import pyarrow.compute as pc

    raw = columns[place]
    changed = pc.not_equal(raw, clipped)
    columns = [*columns[:-1], pc.if_else(changed, raw, pa.scalar(None, pa.int64()))]
    columns[place] = clipped
    return columns
