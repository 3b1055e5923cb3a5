"""Tables of whole numbers and texts as bytes that anybody may have written: what does not fit is refused.

Their columns are known, so that the bytes hold values alone: nothing in them is run, and they take no more
memory than they say. Arrow's own files may say that they are packed, and then take any amount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.tables import Column, Table, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["packed", "unpacked"]

_MOST_ROWS = 1 << 24


def packed(table: Table[Any]) -> bytes:
    """The values of a table, column by column: which are there, then how long texts are, then the values."""
    parts: list[bytes] = []
    for column in columns_of(table.row):
        values = table.arrow[column.name].combine_chunks()
        if column.nullable:
            parts.append(_bits(values))
        parts += _texts(values) if column.type == "str" else [_numbers(values)]
    return b"".join(parts)


def unpacked(row: type, rows: int, given: bytes) -> Table[Any]:
    """The table of so many rows; a ValueError if the bytes are not those of one."""
    import pyarrow as pa

    if not 0 <= rows <= _MOST_ROWS:
        raise ValueError("a number of rows that cannot be")
    rest = _Bytes(given)
    columns = columns_of(row)
    arrays = [_column(column, rows, rest) for column in columns]
    if rest.left:
        raise ValueError(f"{rest.left} bytes too many")
    return Table(row, pa.table(arrays, names=[column.name for column in columns]))


def _bits(values: pa.Array) -> bytes:
    import pyarrow.compute as pc

    there = pc.if_else(values.is_valid(), 1, 0)
    return bytes(there.cast("uint8").to_pylist())


def _numbers(values: pa.Array) -> bytes:
    import pyarrow.compute as pc

    filled = pc.fill_null(values, 0)
    _, data = filled.buffers()
    return bytes(data[8 * filled.offset : 8 * (filled.offset + len(filled))]) if len(filled) else b""


def _texts(values: pa.Array) -> list[bytes]:
    import pyarrow.compute as pc

    filled = pc.fill_null(values, "")
    lengths = pc.binary_length(filled).cast("int64")
    return [_numbers(lengths), "".join(filled.to_pylist()).encode()]


class _Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, given: bytes) -> None:
        self._given = memoryview(given)
        self._place = 0

    @property
    def left(self) -> int:
        """How many are left."""
        return len(self._given) - self._place

    def take(self, count: int) -> bytes:
        """The next of them."""
        if count > self.left:
            raise ValueError("it is cut short")
        self._place += count
        return bytes(self._given[self._place - count : self._place])


def _column(column: Column, rows: int, rest: _Bytes) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    there = _integers(rest.take(rows), pa.uint8()) if column.nullable else None
    found = _integers(rest.take(8 * rows), pa.int64())
    if column.type == "str":
        found = _joined(found, rest)
    elif column.type != "int":
        raise TypeError(f"{column.name} is no whole number or text")
    if there is None:
        return found
    return pc.if_else(pc.equal(there, 1), found, pa.scalar(None, found.type))


def _joined(lengths: pa.Array, rest: _Bytes) -> pa.Array:
    """Texts of these lengths."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(lengths) and not 0 <= pc.min(lengths).as_py() <= pc.max(lengths).as_py() <= rest.left:
        raise ValueError("a text is longer than all")
    total = pc.sum(lengths).as_py() or 0
    text = rest.take(total)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)]).cast(pa.int32())
    texts = pa.Array.from_buffers(pa.string(), len(lengths), [None, offsets.buffers()[1], pa.py_buffer(text)])
    texts.validate(full=True)
    return texts


def _integers(data: bytes, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    rows = len(data) * 8 // kind.bit_width
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])
