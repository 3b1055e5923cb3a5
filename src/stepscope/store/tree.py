"""The tree of all host events, made when a question first needs it: an external merge, thread by thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import NOT_HOST, derived_table
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.store.sums import StoreFiles
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["OPEN_RUNS", "host_runs", "host_skeletons", "stretch", "write_host_tree"]

HOST_TREE = derived_table("host_tree").columns

_HOST = ("python_frames", "ops", "launches", "annotations", "other_events")
_PIECE = 1 << 15
OPEN_RUNS = 64
"""So many are rarely read at a time; with more, the sweep waits for the reading."""
_DOING = "nesting"


def write_host_tree(trace: Trace, target: Path, *, progress: Progress | None = None) -> None:
    """Merges and nests every duration event of host threads; memory is a piece of each open run."""
    import pyarrow.parquet as pq

    store = trace.folder
    files = {name: pq.ParquetFile(store / f"{name}.parquet") for name in _HOST}
    try:
        with parquet_writer(target, HOST_TREE) as writer:
            _sweep_all(store, files, writer, progress)
    finally:
        for file in files.values():
            file.close()


def _sweep_all(store: Path, files: dict[str, Any], writer: Any, progress: Progress | None) -> None:
    skeletons = host_skeletons(store)
    runs = host_runs(store, files)
    total = sum(rows for of_thread in runs.values() for _, _, _, rows, _ in of_thread)
    written = 0
    sweep = _native.ThreadSweep([3])
    with BackgroundWorker() as aside, BackgroundWorker(ahead=OPEN_RUNS) as reading:

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
                    reading.ahead(_pieces(files[name], group, first, rows, name, skeletons)),
                    0,
                    opens=True,
                    marks=name == "python_frames",
                )
                for name, group, first, rows, start in runs[thread]
            ]
            sweep_thread(sweep, pieces, flush)
        flush(least=1)


def host_skeletons(store: Path) -> Any:
    """Skeletons of complete events that belong to host threads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    skeletons = StoreFiles(store).arrow("skeletons").read_all()
    device = pc.is_in(skeletons["category"], pa.array(NOT_HOST))  # false for NULL
    kept = pc.and_(pc.is_in(skeletons["phase"], pa.array(["X"])), pc.invert(device))
    return skeletons.filter(kept)["id"].combine_chunks()


def host_runs(store: Path, files: dict[str, Any]) -> dict[int, list[tuple[str, int, int, int, int]]]:
    """For each thread its stretches of rows: (table, row group, first row, rows, first start)."""
    found: defaultdict[int, list[tuple[str, int, int, int, int]]] = defaultdict(list)
    stored = StoreFiles(store).arrow("runs").read_all()
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


def stretch(file: Any, group: int, first: int, rows: int, columns: list[str]) -> Iterator[Any]:
    """A stretch of rows piece by piece; only the columns that are asked for are read."""
    at = 0
    for batch in file.iter_batches(_PIECE, row_groups=[group], columns=columns):
        low, high = max(first - at, 0), min(first + rows - at, batch.num_rows)
        at += batch.num_rows
        if low >= high:
            continue
        yield batch.slice(low, high - low)
        if at >= first + rows:
            return


def _pieces(file: Any, group: int, first: int, rows: int, name: str, skeletons: Any) -> Iterator[Any]:
    """A stretch of rows as the sweep takes them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.scalar(_HOST.index(name), pa.int64())
    columns = ["event", "thread", "name", "start_ns", "dur_ns", "skeleton"]
    for piece in stretch(file, group, first, rows, columns):
        if name in ("annotations", "other_events"):
            piece = piece.filter(pc.is_in(piece["skeleton"], skeletons))  # noqa: PLW2901
        stored_in = pa.repeat(table, piece.num_rows)
        payload = [view(piece["name"]), view(piece["thread"]), view(stored_in)]
        yield view(piece["event"]), view(piece["start_ns"]), view(piece["dur_ns"]), payload


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
