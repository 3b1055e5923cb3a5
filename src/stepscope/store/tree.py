"""The tree of all host events, made when a question first needs it: an external merge, thread by thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import NOT_HOST, Column
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.threads import Aside

if TYPE_CHECKING:
    from stepscope.streams import Progress

__all__ = ["HOST_TREE", "write_host_tree"]

HOST_TREE = (
    Column("event", "int64", "Place of the event in the profile, from 0."),
    Column("thread", "int32", "Its thread: a row of `threads`."),
    Column("name", "int32", "Its name: a row of `names`."),
    Column("start_ns", "int64", "When it began, in ns after the trace's base time."),
    Column("dur_ns", "int64", "How long it took."),
    Column("stored_in", "string", "The table it is in."),
    Column("parent", "int64", "Event around it on its thread."),
    Column("depth", "int32", "How many events are around it."),
    Column("self_ns", "int64", "Time in which it was the innermost event of its thread."),
    Column("frame", "int64", "Event of the innermost Python frame around it."),
)

_HOST = ("python_frames", "ops", "launches", "annotations", "other_events")
_PIECE = 1 << 15
_DOING = "nesting"


def write_host_tree(store: Path, folder: Path, progress: Progress | None = None) -> Path:
    """Merges and nests every duration event of host threads; memory is a piece of each open run."""
    import pyarrow.parquet as pq

    target = folder / "host_tree.parquet"
    # One name for all: who writes has the lock, and what a killed run left is written over.
    partial = folder / ".host_tree.partial"
    files = {name: pq.ParquetFile(store / f"{name}.parquet") for name in _HOST}
    try:
        with parquet_writer(partial, HOST_TREE) as writer:
            _sweep_all(store, files, writer, progress)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
        for file in files.values():
            file.close()
        if progress:
            progress(_DOING, 1.0, 0, 0)
    return target


def _sweep_all(store: Path, files: dict[str, Any], writer: Any, progress: Progress | None) -> None:
    shapes = _host_shapes(store)
    runs = _runs(store, files)
    total = sum(rows for of_thread in runs.values() for _, _, _, rows, _ in of_thread)
    written = 0
    sweep = _native.ThreadSweep([3])
    with Aside() as aside:

        def flush(least: int = ROW_GROUP) -> None:
            nonlocal written
            if sweep.rows(0) < least:
                return
            written += sweep.rows(0)
            aside.run(partial(_write, writer, sweep.take(0, 3)))
            if progress:
                progress(_DOING, min(written / total, 0.999), 0, written)

        for thread in sorted(runs):
            pieces = [
                Run(
                    start,
                    _pieces(files[name], group, first, rows, name, shapes),
                    0,
                    opens=True,
                    marks=name == "python_frames",
                )
                for name, group, first, rows, start in runs[thread]
            ]
            sweep_thread(sweep, pieces, flush)
        flush(least=1)


def _host_shapes(store: Path) -> Any:
    """Shapes of complete events that belong to host threads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with pa.memory_map(str(store / "shapes.arrow")) as file:
        shapes = pa.ipc.open_file(file).read_all()
    device = pc.is_in(shapes["category"], pa.array(NOT_HOST))  # false for NULL
    kept = pc.and_(pc.is_in(shapes["phase"], pa.array(["X"])), pc.invert(device))
    return shapes.filter(kept)["id"].combine_chunks()


def _runs(store: Path, files: dict[str, Any]) -> dict[int, list[tuple[str, int, int, int, int]]]:
    """For each thread its stretches of rows: (table, row group, first row, rows, first start)."""
    import pyarrow as pa

    found: defaultdict[int, list[tuple[str, int, int, int, int]]] = defaultdict(list)
    with pa.memory_map(str(store / "runs.arrow")) as file:
        stored = pa.ipc.open_file(file).read_all()
    for name, group, thread, first, rows, start in zip(*(c.to_pylist() for c in stored.columns), strict=True):
        if name in files:
            found[thread].append((name, group, first, rows, _native.NULL if start is None else start))
    for name in ("ops", "launches"):
        for group in range(files[name].num_row_groups):
            _add_group(files[name], name, group, found)
    return found


def _add_group(file: Any, name: str, group: int, found: Any) -> None:
    """Finds the threads of a row group that the sweep wrote, which is sorted by thread and time."""
    import pyarrow.compute as pc

    columns = file.read_row_group(group, columns=["thread", "start_ns"])
    threads = columns["thread"].combine_chunks()
    first = 0
    for run in pc.value_counts(threads).to_pylist():
        start = columns["start_ns"][first].as_py()
        found[run["values"]].append(
            (name, group, first, run["counts"], _native.NULL if start is None else start)
        )
        first += run["counts"]


def _pieces(file: Any, group: int, first: int, rows: int, name: str, shapes: Any) -> Iterator[Any]:
    """A stretch of rows piece by piece; only the columns that the tree needs are read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.scalar(_HOST.index(name), pa.int64())
    at = 0
    columns = ["event", "thread", "name", "start_ns", "dur_ns", "shape"]
    for batch in file.iter_batches(_PIECE, row_groups=[group], columns=columns):
        low, high = max(first - at, 0), min(first + rows - at, batch.num_rows)
        at += batch.num_rows
        if low >= high:
            continue
        piece = batch.slice(low, high - low)
        if name in ("annotations", "other_events"):
            piece = piece.filter(pc.is_in(piece["shape"], shapes))
        stored_in = pa.repeat(table, piece.num_rows)
        payload = [view(piece["name"]), view(piece["thread"]), view(stored_in)]
        yield view(piece["event"]), view(piece["start_ns"]), view(piece["dur_ns"]), payload
        if at >= first + rows:
            return


def _write(writer: Any, found: dict[str, Any]) -> None:
    import pyarrow as pa

    name, thread, stored_in = found["payload"]
    columns = [found["event"], thread, name, found["start"], found["dur"], stored_in]
    columns += [found["inside"], found["depth"], found["self"], found["marked"]]
    schema = arrow_schema(HOST_TREE)
    at = schema.get_field_index("stored_in")
    rows = record_batch(schema.set(at, pa.field("stored_in", pa.int32())), columns)
    words = pa.DictionaryArray.from_arrays(rows.column(at), pa.array(_HOST)).cast(pa.string())
    arrays = [*rows.columns[:at], words, *rows.columns[at + 1 :]]
    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema), row_group_size=ROW_GROUP)
