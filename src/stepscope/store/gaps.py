"""Times in which nothing ran on a device, and the launch that each of them waited for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import derived_table
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch, view
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["write_gaps"]

GAPS = derived_table("gaps").columns

# A device by the name that the view `device_work` gives it: its index, or else the process of the event.
_DEVICES = """
    SELECT DISTINCT t.thread, t.device, coalesce(t.device::VARCHAR, h.pid) AS device_name
    FROM stored.device_work t LEFT JOIN stored.threads h ON h.id = t.thread
"""
_WORK = """
    SELECT thread, device, start_ns, dur_ns, event, launch
    FROM stored.device_work WHERE start_ns IS NOT NULL ORDER BY start_ns, event
"""
_LAUNCHES = "SELECT event, thread, start_ns FROM stored.launches WHERE work_events > 0"


def write_gaps(trace: Trace, target: Path, *, progress: Progress | None = None) -> None:
    """Sweeps the work of every device in order of time; memory is 24 bytes a launch, and DuckDB's."""
    devices = _Devices(trace)
    total = max(trace.meta.rows.get("device_work", 0), 1)
    done = 0
    finder = _native.GapFinder()
    # Faster than a join: most work ends a gap, and looks for its launch near the last one.
    for batch in trace.batches(_LAUNCHES):
        finder.add_launches(*(view(column) for column in batch.columns))
    finder.build()
    with parquet_writer(target, GAPS) as writer, BackgroundWorker() as aside:

        def flush(least: int = ROW_GROUP) -> None:
            if finder.rows >= least:
                aside.run(partial(writer.write_batch, _rows(finder, devices.names), row_group_size=ROW_GROUP))

        for batch in trace.batches(_WORK):
            numbers = devices.numbers(batch["thread"], batch["device"])
            finder.push(numbers, *(view(column) for column in batch.columns[2:]))
            flush()
            done += batch.num_rows
            if progress:
                progress("finding gaps", min(done / total, 0.999), 0, done)
        flush(least=1)


class _Devices:
    """Numbers for devices, that go by their index, or by their process where there is none."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow as pa

        rows = trace.rows(_DEVICES)
        names = sorted({row["device_name"] for row in rows})
        self.names = pa.array(names, pa.string())
        self._indexes, self._threads = (
            {row[key]: names.index(row["device_name"]) for row in rows if (row["device"] is None) is unnamed}
            for key, unnamed in (("device", False), ("thread", True))
        )

    def numbers(self, threads: pa.Array, indexes: pa.Array) -> memoryview:
        """The number of the device of each piece of work."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(self.names) == 1:
            return view(pa.repeat(pa.scalar(0, pa.int64()), len(threads)))
        return view(pc.coalesce(_looked_up(indexes, self._indexes), _looked_up(threads, self._threads)))


def _looked_up(keys: pa.Array, numbers: dict[int, int]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pa.array(list(numbers), keys.type)
    return pa.array(list(numbers.values()), pa.int64()).take(pc.index_in(keys, known, skip_nulls=True))


def _rows(finder: _native.GapFinder, devices: Any) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(GAPS)
    numbered = record_batch(schema.set(0, pa.field("device_name", pa.int32())), finder.take())
    words = pa.DictionaryArray.from_arrays(numbered.column(0), devices).cast(pa.string())
    return pa.RecordBatch.from_arrays([words, *numbered.columns[1:]], schema=schema)
