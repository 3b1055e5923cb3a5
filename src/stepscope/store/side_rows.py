"""Rows of side tables: plain columns, each table a file that is begun with its first row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer
from stepscope.store.rows import cast_column, wrong

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.schema import StoredTable

__all__ = ["SideRows"]


class SideRows:
    """Checks the rows of side tables and writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self.rows: dict[str, int] = {}
        """How many rows each table has; those with none are not there."""

    def add(self, table: StoredTable, rows: pa.RecordBatch, base_ns: int) -> None:
        """Writes rows; times since 1970, given as `epoch_ns`, become `start_ns` after the base time."""
        import pyarrow as pa

        schema = arrow_schema(table.columns)
        given = self._given(table, rows, base_ns)
        arrays = [given.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in schema]
        for field, array in zip(schema, arrays, strict=True):
            if array.null_count and not field.nullable:
                raise wrong(table.name, field.name, f"is NULL in {array.null_count:,} rows; it never is")
        if not rows.num_rows:
            return
        if table.name not in self._files:
            self._files[table.name] = parquet_writer(
                self._folder / f"{table.name}.parquet", table.columns, statistics=False
            )
        records = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._files[table.name].write_batch(records, row_group_size=ROW_GROUP)
        self.rows[table.name] = self.rows.get(table.name, 0) + rows.num_rows

    def close(self) -> None:
        """Ends all files."""
        for file in self._files.values():
            file.close()

    def _given(self, table: StoredTable, rows: pa.RecordBatch, base_ns: int) -> dict[str, pa.Array]:
        import pyarrow.compute as pc

        types = {column.name: column.type for column in table.columns}
        if "start_ns" in types:
            types["epoch_ns"] = "int64"
        given: dict[str, pa.Array] = {}
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            if name in given:
                raise wrong(table.name, name, "is there twice")
            if name not in types:
                raise wrong(table.name, name, "does not exist", f"there are: {', '.join(types)}")
            given[name] = cast_column(table.name, name, array, types[name])
        if "epoch_ns" in given:
            if "start_ns" in given:
                raise wrong(table.name, "epoch_ns", "says what start_ns says", "give one of them")
            given["start_ns"] = pc.subtract(given.pop("epoch_ns"), base_ns)
        return given
