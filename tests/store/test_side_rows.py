"""Side tables: stored if a source fills them, empty if not, refused by name if a column does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.store.test_rows import HOST, rows, stored

from stepscope.errors import StepscopeError
from stepscope.store.meta import SourceMeta
from stepscope.store.trace import Reads
from stepscope.store.writer import StoreWriter

READINGS = {
    "device": [0, None],
    "name": ["Power", "SM Active"],
    "start_ns": [5, 7],
    "dur_ns": [None, 100],
    "value": [400, 0.5],
}
ASKED = "SELECT device, name, unit, start_ns, dur_ns, value FROM device_counters ORDER BY start_ns"


def test_rows_come_back_with_absolute_times(tmp_path: Path) -> None:
    def fill(writer: StoreWriter) -> None:
        writer.add_rows("device_counters", pa.table(READINGS))
        writer.add_rows("ops", pa.table(HOST))

    trace = stored(tmp_path / "store", fill, SourceMeta(source="plain", base_ns=1000))
    found = [(0, "Power", None, 1005, None, 400.0), (None, "SM Active", None, 1007, 100, 0.5)]
    assert rows(trace, ASKED) == found
    reads: Reads = {"device_counters": ("device", "name", "unit", "start_ns", "dur_ns", "value")}
    assert rows(trace.reading(reads), ASKED) == found
    assert trace.has("device_counters")
    assert trace.meta.rows["device_counters"] == 2
    assert trace.meta.events == 1, "a reading is no event"


def test_a_table_that_nobody_fills_is_empty_and_has_no_file(tmp_path: Path) -> None:
    def fill(writer: StoreWriter) -> None:
        writer.add_rows("ops", pa.table(HOST))
        writer.add_rows("device_counters", pa.table({name: pa.array([], pa.int64()) for name in ("device",)}))

    trace = stored(tmp_path / "store", fill)
    assert rows(trace, ASKED) == []
    assert rows(trace.reading({"device_counters": ("value",)}), "SELECT value FROM device_counters") == []
    assert not trace.has("device_counters")
    assert not (tmp_path / "store" / "device_counters.parquet").exists()
    trace.check_stored()


def test_times_since_1970_count_from_the_first_source(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    writer = StoreWriter(folder)
    writer.add_rows("ops", pa.table(HOST))
    writer.end_source(SourceMeta(source="first", base_ns=1000))
    writer.add_rows("device_counters", pa.table({"name": ["a"], "epoch_ns": [1500], "value": [1]}))
    writer.end_source(SourceMeta(source="second"))
    writer.finish()
    import pyarrow.parquet as pq

    assert pq.read_table(folder / "device_counters.parquet")["start_ns"].to_pylist() == [500]


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"weight": [1, 2]}, "the column weight does not exist"),
        ({"name": [None, "a"]}, "the column name is NULL in 1 rows"),
        ({"value": ["a", "b"]}, "the column value is of type string, not double"),
        ({"epoch_ns": [1, 2]}, "the column epoch_ns says what start_ns says"),
    ],
)
def test_what_is_refused(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match=message):
        stored(
            tmp_path / "store",
            lambda writer: writer.add_rows("device_counters", pa.table(READINGS | columns)),
        )


def test_a_second_source_does_not_fill_the_same_table(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    writer = StoreWriter(folder)
    writer.add_rows("device_counters", pa.table(READINGS))
    writer.end_source(SourceMeta(source="first"))
    with pytest.raises(StepscopeError, match="first has filled it"):
        writer.add_rows("device_counters", pa.table(READINGS))
