"""The list of stretches: each has rows of one thread, sorted by time, and together they are all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.samples import FEW, SAMPLES, open_shared, tiered

from stepscope.schema import STORED
from stepscope.store.columns import ROW_GROUP
from stepscope.store.stretches import WrittenRows, read_stretch, stretches_by_thread


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_all_rows_of_a_real_profile_are_listed(name: str, sample: Callable[[str], Path]) -> None:
    trace = open_shared(sample(name))
    listed: Counter[str] = Counter()
    files = {table.name: pq.ParquetFile(trace.folder / f"{table.name}.parquet") for table in STORED}
    for thread, stretches in stretches_by_thread(trace.folder, files).items():
        for one in stretches:
            rows = pa.Table.from_batches(read_stretch(files[one.table], one, ["thread", "start_ns"]))
            starts = rows["start_ns"].combine_chunks()
            assert pc.unique(rows["thread"]).to_pylist() == [thread]
            assert pc.all(pc.less_equal(starts[:-1], starts[1:])).as_py() in (True, None)
            assert starts[0].as_py() in (one.start, None)
            listed[one.table] += rows.num_rows
    assert listed == Counter({name: rows for name, rows in trace.meta.rows.items() if rows and name in files})


def test_stretches_end_with_their_row_group() -> None:
    written = WrittenRows("ops")
    starts = pa.array(range(2 * ROW_GROUP + 5), pa.int64())
    written.add([(7, ROW_GROUP - 1), (8, ROW_GROUP + 6)], starts)
    written.add([(8, 3)], starts)
    assert written.runs == [
        ("ops", 0, 7, 0, ROW_GROUP - 1, 0),
        ("ops", 0, 8, ROW_GROUP - 1, 1, ROW_GROUP - 1),
        ("ops", 1, 8, 0, ROW_GROUP, ROW_GROUP),
        ("ops", 2, 8, 0, 5, 2 * ROW_GROUP),
        ("ops", 3, 8, 0, 3, 0),
    ]
