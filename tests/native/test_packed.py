"""Columns in as few bytes as they need come back as they were."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

from stepscope import _native
from stepscope.store.columns import array_of, bits_of

LEAST, MOST = -(1 << 63), (1 << 63) - 1
KINDS = {"int32": pa.int32(), "int64": pa.int64(), "double": pa.float64()}


def packed(*columns: pa.Array) -> memoryview:
    return _native.packed([bits_of(column) for column in columns], len(columns[0]))


def unpacked(given: memoryview, *columns: pa.Array) -> list[pa.Array]:
    """The columns again, all of them."""
    rows = len(columns[0])
    wanted = [(place, column.type.bit_width) for place, column in enumerate(columns)]
    found = _native.unpacked(given, len(given), len(columns), rows, wanted)
    return [array_of(column.type, one, rows) for column, one in zip(columns, found, strict=True)]


class TestWidths:
    """How many bytes a value takes."""

    @pytest.mark.parametrize(
        "values, width",
        [
            ([7, 7, 7], 0),
            ([5, 6, 7], 0),  # they count
            ([MOST - 1, MOST, MOST], 1),
            ([0, 255, 1], 1),
            ([256, 511, 300], 1),
            ([255, 256, 255], 2),
            ([-1, -256, -2], 1),
            ([1 << 40, (1 << 40) + 65536, 1 << 40], 4),
            ([-1, 1, -1], 8),
            ([LEAST, MOST, 0], 8),
            ([None, None, None], 0),
        ],
    )
    def test_follows_from_the_bits_that_differ(self, values: list[int | None], width: int) -> None:
        column = pa.array(values, pa.int64())
        head = 16
        found = packed(column)
        assert len(found) == head + 3 * width
        assert unpacked(found, column)[0].equals(column)

    def test_what_is_missing_takes_a_bit(self) -> None:
        column = pa.array([*range(0, 1000, 7), None], pa.int32())
        found = packed(column)
        assert len(found) == 16 + 2 * len(column) + (len(column) + 7) // 8
        assert unpacked(found, column)[0].equals(column)


class TestRoundTrip:
    """Any columns."""

    @settings(max_examples=tries(60), deadline=None)
    @given(st.data())
    def test_gives_what_was_packed(self, data: st.DataObject) -> None:
        rows = data.draw(st.integers(1, 150))
        first = data.draw(st.integers(0, 9))
        of = {
            "int32": st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 300),
            "int64": st.integers(LEAST, MOST) | st.integers(-70_000, 70_000) | st.just(1),
            "double": st.floats(allow_nan=False) | st.just(-0.0),
        }
        columns = []
        for _ in range(data.draw(st.integers(1, 4))):
            kind = data.draw(st.sampled_from(sorted(KINDS)))
            values = st.none() | of[kind] if data.draw(st.booleans()) else of[kind]
            drawn = data.draw(st.lists(values, min_size=first + rows, max_size=first + rows))
            columns.append(pa.array(drawn, KINDS[kind]).slice(first))
        found = unpacked(packed(*columns), *columns)
        assert [one.to_pylist() for one in found] == [one.to_pylist() for one in columns]


class TestRefusals:
    """What is too short or has no such column is refused."""

    def test_bytes_that_are_cut(self) -> None:
        found = packed(pa.array([1, 300, 5], pa.int64()))
        for size in (0, 15, 16, len(found) - 1):
            with pytest.raises(ValueError, match="cut"):
                _native.unpacked(found, size, 1, 3, [(0, 64)])
        with pytest.raises(ValueError, match="shorter"):
            _native.unpacked(found, len(found) + 1, 1, 3, [(0, 64)])

    def test_places_and_widths_that_are_none(self) -> None:
        found = packed(pa.array([1, 300, 5], pa.int64()))
        with pytest.raises(IndexError):
            _native.unpacked(found, len(found), 1, 3, [(1, 64)])
        with pytest.raises(ValueError, match="width"):
            _native.unpacked(found, len(found), 1, 3, [(0, 16)])
        with pytest.raises(ValueError, match="shorter"):
            _native.packed([(b"1234567", None, 0, 64)], 1)
