"""Writes a store: batches of events as they are read, then what the sweeps find out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.schema import DICTIONARIES, SIDE, STORED, StoredTable
from stepscope.store.columns import ROW_GROUP, arrow_schema, chosen, parquet_writer, record_batch, texts
from stepscope.store.impossible import NameKinds, impossible_durations
from stepscope.store.layout import write_meta
from stepscope.store.links import Staged, write_linked
from stepscope.store.meta import Damage, SourceMeta, TraceMeta
from stepscope.store.rows import SHARED, PlainRows, batches_of, shown, stored_table
from stepscope.store.side_rows import SideRows
from stepscope.store.sizes import BelievedSizes
from stepscope.store.stretches import WrittenRows
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope._native import Batch

__all__ = ["StoreWriter", "TableTaken"]

_WAITING = 2  # batches that may wait to be encoded


class TableTaken(StepscopeError):  # noqa: N818  # as OutOfMemory: it says what is wrong
    """Two sources would fill one table, and what they say would be counted twice."""

    def __init__(self, table: str, by: str) -> None:
        super().__init__(f"no other source can add to the table {table}: {by} has filled it")
        self.table = table
        self.by = by


class StoreWriter:
    """Takes the rows of one source or several, in any order, and leaves a finished store in `folder`."""

    def __init__(self, folder: Path, expected: int | None = None) -> None:
        """`expected` is the number of sources that will be read, where it is known."""
        self.folder = folder
        self._expected = expected
        self._kinds = NameKinds()
        self._staged = {table.name: Staged(folder, table) for table in STORED if table.linked}
        self._linked = False
        self.rows = dict.fromkeys((table.name for table in STORED), 0)
        self._dictionaries: dict[str, Any] = {}
        self._written = {table.name: WrittenRows(table.name) for table in STORED}
        self.phases: set[str | None] = set()
        self.sources: list[SourceMeta] = []
        """The sources that have been read, the one that began the trace first."""
        self._filled: dict[str, str] = {}
        self._plain = PlainRows(self._keep)
        self._side = SideRows(folder)
        self._sizes = {table.name: BelievedSizes() for table in STORED}
        self._aside: BackgroundWorker | None = None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Within this, what is added with `add_rows` is numbered and encoded in another thread, in order."""
        try:
            with BackgroundWorker(_WAITING) as self._aside:  # leaving it waits for all of them
                yield
        finally:
            self._aside = None

    def open_files(self) -> None:
        """Imports pyarrow and opens the files, which the first rows would do otherwise."""
        _ = self._schemas, self._parquet

    @cached_property
    def _schemas(self) -> list[pa.Schema]:
        return [arrow_schema(table.read_columns) for table in STORED]

    @cached_property
    def _parquet(self) -> dict[str, Any]:
        return {
            table.name: parquet_writer(self.folder / f"{table.name}.parquet", table.all_columns)
            for table in STORED
            if not table.linked
        }

    def add_rows(self, table: str, rows: pa.RecordBatch | pa.Table) -> None:
        """Stores rows of a table: names, threads and categories as texts, times in ns.

        The recipe “Add a source” in CONTRIBUTING.md lists the columns. Events are numbered, linked and nested
        as those of a Kineto trace are.
        """
        stored = stored_table(table)
        if table in self._filled and table not in SHARED:
            raise TableTaken(table, self._filled[table])
        if self._aside is None:
            self._add_rows(stored, rows)
        else:
            self._aside.run(partial(self._add_rows, stored, rows))

    def _add_rows(self, table: StoredTable, rows: pa.RecordBatch | pa.Table) -> None:
        base = self.sources[0].base_ns if self.sources else 0
        for batch in batches_of(rows):
            if table in SIDE:
                self._side.add(table, batch, base)
                continue
            self._plain.add(table, batch, sum(self.rows.values()), base)
            self.rows[table.name] += batch.num_rows

    def _keep(
        self, table: StoredTable, records: pa.RecordBatch, runs: list[tuple[int, int, int, int]]
    ) -> None:
        records = self._sizes[table.name].of(records)
        if table.name in self._staged:
            self._staged[table.name].add(records, runs)
        else:
            self._write(table, records, runs)

    def waits(self, batch: Batch) -> bool:
        """Whether the rows wait for their links: one thread is to add all of these, and one all others."""
        return STORED[batch.table].name in self._staged

    def add(self, batch: Batch) -> None:
        """Stores one batch of a table that a native reader filled; its numbers count from 0."""
        table = STORED[batch.table]
        self.rows[table.name] += batch.rows
        columns, runs = batch.take()
        self._keep(table, record_batch(self._schemas[batch.table], columns), runs)

    def _write(
        self, table: StoredTable, records: pa.RecordBatch, runs: list[tuple[int, int, int, int]]
    ) -> None:
        """One row group or several of full size: what belongs to a thread stays together, sorted by time."""
        for at in range(0, records.num_rows, ROW_GROUP):
            self._parquet[table.name].write_batch(records.slice(at, ROW_GROUP), row_group_size=ROW_GROUP)
        self._written[table.name].add(((thread, rows) for thread, _, rows, _ in runs), records["start_ns"])

    def add_dictionary(self, drained: dict[str, Any]) -> None:
        """Stores the texts that a native reader numbered since the last time."""
        first, names = drained["first_name"], texts(*drained["names"])
        self._plain.first_name = first + len(names)
        self._append("names", [range(first, first + len(names)), names])
        self._kinds.add(range(first, first + len(names)), names)
        first, skeletons = drained["first_skeleton"], texts(*drained["skeletons"])
        self._plain.first_skeleton = first + len(skeletons)
        phases = chosen(drained["small"], drained["phases"])
        self.phases.update(phases.unique().to_pylist())
        self._append(
            "skeletons",
            [
                range(first, first + len(skeletons)),
                skeletons,
                phases,
                chosen(drained["small"], drained["categories"]),
                chosen([table.name for table in STORED], drained["tables"]),
                drained["events"],
                drained["total"],
            ],
        )

    def add_threads(self, threads: list[tuple[str, str]]) -> None:
        """Stores process and thread, as JSON, of every number that a native reader gave."""
        self._plain.add_threads(threads)

    def _append(self, name: str, columns: list[Any]) -> None:
        import pyarrow as pa

        table = next(table for table in DICTIONARIES if table.name == name)
        schema = arrow_schema(table.columns)
        if name not in self._dictionaries:
            self._dictionaries[name] = pa.ipc.new_file(self.folder / f"{name}.arrow", schema)
        arrays = [
            values if isinstance(values, pa.Array) else pa.array(list(values), field.type)
            for values, field in zip(columns, schema, strict=True)
        ]
        self._dictionaries[name].write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def end_source(self, meta: SourceMeta) -> None:
        """Notes what a source that has been read says of itself; the next one may begin."""
        base = self.sources[0].base_ns if self.sources else 0
        if meta.base_ns not in (0, base) and (self.sources or self._plain.since_1970):
            raise StepscopeError(
                f"{meta.source} has base_ns {meta.base_ns:,}, but its rows were taken to count from {base:,}",
                hint="its source is to give epoch_ns, and no base_ns",
            )
        if self.sources:  # what is added is of the rank that the trace is of
            first = self.sources[0]
            meta = replace(meta, rank=first.rank, rank_source=first.rank_source)
        else:
            meta = replace(meta, joined="")
        self._plain.flush()
        before = sum(one.events for one in self.sources)
        odd = sum(sizes.taken_out for sizes in self._sizes.values())
        self._sizes = {table.name: BelievedSizes() for table in STORED}
        damage = (*meta.damage, Damage("a size that no memory has, not kept", odd)) if odd else meta.damage
        self.sources.append(replace(meta, events=sum(self.rows.values()) - before, damage=damage))
        for table, rows in (self.rows | self._side.rows).items():
            if rows:
                self._filled.setdefault(table, meta.source)

    def link_early(self, wait: Callable[[], None]) -> None:
        """Sweeps and links if no other source follows; rows of other tables may still be added meanwhile.

        `wait` returns when all names have been added.
        """
        if self._expected == len(self.sources) + 1:
            self._link(wait)

    def _link(self, wait: Callable[[], None] = lambda: None) -> None:
        for staged in self._staged.values():
            staged.close()

        def kinds() -> NameKinds:
            wait()
            self._kinds.add(list(self._plain.names.values()), list(self._plain.names))
            return self._kinds

        clipped = impossible_durations(self._staged["device_work"], kinds)
        write_linked(self.folder, self._staged, self._written, clipped)
        self._linked = True

    def finish(self) -> None:
        """Sweeps, links and closes; after this the store is whole."""
        self._append_plain()
        if not self._linked:
            self._link()
        for writer in self._parquet.values():
            writer.close()
        self._side.close()
        runs = [run for written in self._written.values() for run in written.runs]
        self._append("runs", list(zip(*runs, strict=True)) or [()] * 6)
        for dictionary in self._dictionaries.values():
            dictionary.close()
        write_meta(self.folder, TraceMeta(tuple(self.sources), self.rows | self._side.rows))

    def _append_plain(self) -> None:
        """The threads of all rows, and the texts that plain rows brought."""
        plain = self._plain
        pairs, threads = shown(plain.threads), plain.threads
        columns: list[Any] = [[pid for pid, _ in pairs], [tid for _, tid in pairs]]
        columns += [[pid for pid, _ in threads], [tid for _, tid in threads]]
        self._append("threads", [range(len(threads)), *columns])
        self._append("names", [plain.names.values(), plain.names])
        skeletons = [astuple(skeleton) for skeleton in plain.skeletons.values()]
        self._append("skeletons", list(zip(*skeletons, strict=True)) or [()] * 7)
