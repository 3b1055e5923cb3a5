"""Columns of one number."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stepscope.store.columns import ROW_GROUP, repeated


@pytest.mark.parametrize("rows", [0, 1, 100, ROW_GROUP // 8, ROW_GROUP, ROW_GROUP + 1])
def test_one_number_takes_little_more_memory_than_its_rows(rows: int) -> None:
    column = repeated(7, rows, pa.int64())
    assert (len(column), column.null_count) == (rows, 0)
    assert set(column.to_pylist()[:2] + column.to_pylist()[-2:]) <= {7}
    values = column.buffers()[1]
    assert values is None or values.size <= 8 * 8 * rows + 64


def test_large_columns_of_one_number_share_their_memory() -> None:
    columns = [repeated(7, rows, pa.int64()) for rows in (ROW_GROUP, ROW_GROUP // 2)]
    assert len({column.buffers()[1].address for column in columns}) == 1
