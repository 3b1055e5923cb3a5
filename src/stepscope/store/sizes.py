"""Which sizes are believed: one that no machine has would stop every sum that it is part of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BelievedSizes"]

MOST_BYTES = 1 << 53
"""8 PiB, more than the memory of any machine."""
MOST_SUMMED = 1 << 62
"""Sums of all of them fit into 64 bits."""


class BelievedSizes:
    """Takes sizes that cannot be out of the rows of one table, and counts them."""

    def __init__(self) -> None:
        self._summed: dict[str, float] = {}
        self.taken_out = 0

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; a size that is not believed is NULL."""
        for place, name in enumerate(records.schema.names):
            if name == "bytes" or name.endswith("_bytes"):
                records = self._column(records, place, name)
        return records

    def _column(self, records: pa.RecordBatch, place: int, name: str) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        column = records.column(place)
        ends = pc.min_max(column).as_py()
        if ends["min"] is None:
            return records
        if ends["min"] < -MOST_BYTES or ends["max"] > MOST_BYTES:
            far = pc.or_(pc.less(column, -MOST_BYTES), pc.greater(column, MOST_BYTES))
            column = self._without(column, far)
        # In floating point, for many of them together exceed 64 bits.
        summed = self._summed.get(name, 0.0) + (pc.sum(pc.abs(column).cast(pa.float64())).as_py() or 0.0)
        if summed > MOST_SUMMED:
            column = self._without(column, pa.array([True] * len(column)))
        else:
            self._summed[name] = summed
        return records.set_column(place, records.schema.field(place), column)

    def _without(self, column: pa.Array, which: pa.Array) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        kept = pc.if_else(which, pa.scalar(None, column.type), column)
        self.taken_out += kept.null_count - column.null_count
        return kept
