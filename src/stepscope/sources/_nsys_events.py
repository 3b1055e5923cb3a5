"""What tables of an Nsight Systems export share: names by number, threads in bits of one number, times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.sources._arrow_tables import ProfileTables, Texts, Times
from stepscope.store.rows import each_of_distinct, same

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["NsysEvents"]

_BITS = 24
_WHOLE = (1 << _BITS) - 1


class NsysEvents:
    """Takes rows of an export as events of a store."""

    def __init__(self, tables: ProfileTables, writer: StoreWriter) -> None:
        self.tables = tables
        self.times = Times()
        self.texts = Texts(tables, "StringIds")
        self.counted: dict[str, int] = {}
        """How many rows of each kind were kept."""
        self._writer = writer

    def add(self, table: str, kind: str, columns: dict[str, pa.Array]) -> None:
        """Stores rows and counts them under their kind."""
        import pyarrow as pa

        rows = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if rows.num_rows:
            self._writer.add_rows(table, rows)
            self.counted[kind] = self.counted.get(kind, 0) + rows.num_rows

    def timed(self, table: str, wanted: dict[str, str]) -> Iterator[pa.RecordBatch]:
        """The rows of a table whose times can be, with `start` and `dur`."""
        for batch in self.tables.batches(table, wanted):
            timed = self.times.of(table, batch)
            if timed.num_rows:
                yield timed

    def host(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Times, process and thread of something on the host."""
        import pyarrow as pa

        thread = batch.column("globalTid")

        def process(number: int | None) -> str:
            return "unknown" if number is None else str(number >> _BITS & _WHOLE)

        def of_it(number: int | None) -> str:
            return "unknown" if number is None else str(number & _WHOLE)

        told = each_of_distinct([thread], (process, pa.string()), (of_it, pa.string()))
        return {
            "start_ns": batch.column("start"),
            "dur_ns": batch.column("dur"),
            "process": told[0],
            "thread": told[1],
        }

    def other(self, batch: pa.RecordBatch, names: pa.Array, category: str) -> dict[str, pa.Array]:
        """Something on the host that no other table takes."""
        kinds = {"category": same(category, batch.num_rows), "phase": same("X", batch.num_rows)}
        return self.host(batch) | kinds | {"name": names}
