"""Writes a store: batches of events as they are read, then what the sweeps find out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.schema import DICTIONARIES, STORED, StoredTable
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch
from stepscope.store.layout import write_meta
from stepscope.store.links import Staged, write_linked

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope._native import Batch

__all__ = ["StoreWriter"]


class StoreWriter:
    """Takes batches in any order and leaves a finished store in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = dict.fromkeys((table.name for table in STORED), 0)
        self._schemas = [arrow_schema(table.read_columns) for table in STORED]
        self._parquet = {
            table.name: parquet_writer(folder / f"{table.name}.parquet", table.all_columns)
            for table in STORED
            if not table.linked
        }
        self._row_groups = dict.fromkeys(self._parquet, 0)
        self._staged = {table.name: Staged(folder, table) for table in STORED if table.linked}
        self._dictionaries: dict[str, Any] = {}
        self._runs: list[tuple[str, int, int, int, int, int]] = []
        self.phases: set[str | None] = set()

    def add(self, batch: Batch) -> None:
        """Stores one batch of a table."""
        table = STORED[batch.table]
        self.rows[table.name] += batch.rows
        columns, runs = batch.take()
        records = record_batch(self._schemas[batch.table], columns)
        if table.name in self._staged:
            self._staged[table.name].add(records, runs)
        else:
            self._write(table, records, runs)

    def _write(
        self, table: StoredTable, records: pa.RecordBatch, runs: list[tuple[int, int, int, int]]
    ) -> None:
        """One row group or several of full size: what belongs to a thread stays together, sorted by time."""
        group = self._row_groups[table.name]
        for at in range(0, records.num_rows, ROW_GROUP):
            self._parquet[table.name].write_batch(records.slice(at, ROW_GROUP), row_group_size=ROW_GROUP)
        starts = records.column("start_ns")
        for thread, first, rows, _ in runs:
            at = first
            while at < first + rows:
                here = min(first + rows - at, ROW_GROUP - at % ROW_GROUP)
                place = (group + at // ROW_GROUP, thread, at % ROW_GROUP, here, starts[at].as_py())
                self._runs.append((table.name, *place))
                at += here
        self._row_groups[table.name] = group - -records.num_rows // ROW_GROUP

    def add_dictionary(self, drained: dict[str, Any]) -> None:
        """Stores the texts that were numbered since the last time."""
        first = drained["first_name"]
        names = drained["names"]
        self._append("names", [range(first, first + len(names)), names])
        first, shapes = drained["first_shape"], drained["shapes"]
        self.phases.update(drained["phases"])
        stored_in = [STORED[table].name for table in drained["tables"]]
        self._append(
            "shapes",
            [
                range(first, first + len(shapes)),
                shapes,
                drained["phases"],
                drained["categories"],
                stored_in,
                drained["events"],
                drained["total"],
            ],
        )

    def _append(self, name: str, columns: list[Any]) -> None:
        import pyarrow as pa

        table = next(table for table in DICTIONARIES if table.name == name)
        schema = arrow_schema(table.columns)
        if name not in self._dictionaries:
            self._dictionaries[name] = pa.ipc.new_file(self.folder / f"{name}.arrow", schema)
        arrays = [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
        self._dictionaries[name].write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def finish(self, threads: list[tuple[str, str]], meta: dict[str, Any]) -> None:
        """Sweeps, links and closes; after this the store is whole."""
        import json

        for staged in self._staged.values():
            staged.close()
        write_linked(self.folder, self._staged)
        for writer in self._parquet.values():
            writer.close()
        plain = [[json.loads(text) if text else "" for text in pair] for pair in threads]
        shown = [[str(part) for part in pair] for pair in plain]
        self._append(
            "threads",
            [
                range(len(threads)),
                [pid for pid, _ in shown],
                [tid for _, tid in shown],
                [pid for pid, _ in threads],
                [tid for _, tid in threads],
            ],
        )
        self._append("runs", list(zip(*self._runs, strict=True)) or [()] * 6)
        for dictionary in self._dictionaries.values():
            dictionary.close()
        write_meta(self.folder, {**meta, "rows": self.rows})
