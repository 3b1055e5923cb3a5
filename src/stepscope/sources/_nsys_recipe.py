"""What the recipe `nvtx_gpu_proj_trace` of Nsight Systems writes: NVTX ranges and their projections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.sources._arrow_tables import Times
from stepscope.store.meta import Damage
from stepscope.store.rows import of_distinct, same

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["is_projection", "read_projection"]

_NAMES = ("Name", "Projected Start", "Projected Duration", "Orig Start", "Orig Duration")
_ROWS = 1 << 16


def is_projection(path: Path) -> bool:
    """Whether a Parquet file is such a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return set(pq.read_schema(path).names) >= set(_NAMES)
    except (OSError, pa.ArrowException):
        return False


def read_projection(path: Path, writer: StoreWriter) -> tuple[int, tuple[Damage, ...]]:
    """Reads each range as the host had it and as the device had it; returns how many there were."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    times, count, damage = Times(), 0, []
    try:
        file = pq.ParquetFile(path)
        there = [name for name in (*_NAMES, "PID", "TID") if name in file.schema_arrow.names]
        for batch in file.iter_batches(_ROWS, columns=there):
            for kind, first in (("user_annotation", "Orig"), ("gpu_user_annotation", "Projected")):
                count += _add(batch, (kind, first), times, writer)
    except (OSError, pa.ArrowException) as error:
        damage.append(Damage(f"the table could not be read to the end: {str(error).splitlines()[0][:200]}"))
    return count, (*damage, *times.damage)


def _add(batch: pa.RecordBatch, what: tuple[str, str], times: Times, writer: StoreWriter) -> int:
    """Adds the ranges of a batch; a row without a name is the work outside of all ranges."""
    import pyarrow as pa
    import pyarrow.compute as pc

    category, first = what
    named = batch.filter(pc.is_valid(batch.column("Name")))
    nothing = pa.nulls(named.num_rows, pa.int64())

    def whole(name: str) -> pa.Array:
        column = named.column(name) if name in named.schema.names else nothing
        return column.cast(pa.int64(), safe=False)

    start = whole(f"{first} Start")
    columns = {"start": start, "end": pc.add(start, whole(f"{first} Duration")), "name": named.column("Name")}
    columns |= {"pid": whole("PID"), "tid": whole("TID")}
    timed = times.of("the table", pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))
    if not timed.num_rows:
        return 0
    rows = {
        "name": timed.column("name").cast(pa.string()),
        "start_ns": timed.column("start"),
        "dur_ns": timed.column("dur"),
        "process": of_distinct([timed.column("pid")], _text, pa.string()),
        "thread": of_distinct([timed.column("tid")], _text, pa.string()),
        "category": same(category, timed.num_rows),
    }
    writer.add_rows("annotations", pa.RecordBatch.from_arrays(list(rows.values()), list(rows)))
    return timed.num_rows if category == "user_annotation" else 0


def _text(number: int | None) -> str:
    return "unknown" if number is None else str(number)
