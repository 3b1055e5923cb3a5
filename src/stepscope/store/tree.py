"""The tree of all host events, made when a question first needs it: an external merge, thread by thread."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import NOT_HOST, derived_table
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch, view
from stepscope.store.links import Run, sweep_thread
from stepscope.store.stretches import Stretch, read_stretch, stretches_by_thread
from stepscope.store.sums import StoreFiles
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["OPEN_RUNS", "host_skeletons", "write_host_tree"]

HOST_TREE = derived_table("host_tree").columns

_HOST = ("python_frames", "ops", "launches", "annotations", "other_events")
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
    stretches = stretches_by_thread(store, files)
    total = sum(one.rows for of_thread in stretches.values() for one in of_thread)
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

        for thread in sorted(stretches):
            pieces = [
                Run(
                    one.start,
                    reading.ahead(_pieces(files[one.table], one, skeletons)),
                    0,
                    opens=True,
                    marks=one.table == "python_frames",
                )
                for one in stretches[thread]
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


def _pieces(file: Any, of: Stretch, skeletons: Any) -> Iterator[Any]:
    """A stretch of rows as the sweep takes them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.scalar(_HOST.index(of.table), pa.int64())
    columns = ["event", "thread", "name", "start_ns", "dur_ns", "skeleton"]
    for piece in read_stretch(file, of, columns):
        if of.table in ("annotations", "other_events"):
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
