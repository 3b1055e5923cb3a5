"""A stored trace: what is in it, and answers in SQL."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import StepscopeError
from stepscope.store import connection as fenced
from stepscope.store.layout import locked, read_meta
from stepscope.store.views import VIEWS
from stepscope.tables import Table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.streams import Progress

__all__ = ["Reads", "Trace"]

Row = TypeVar("Row")
Reads = dict[str, tuple[str, ...]]
"""Which views and which of their columns an analysis reads."""

_LAZY = "host_tree"


class Trace:
    """A trace in a store. Large tables stay on disk; answers are Arrow tables."""

    def __init__(self, folder: Path, *, reads: Reads | None = None, progress: Progress | None = None) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self._reads = reads
        self._progress = progress
        self._open: duckdb.DuckDBPyConnection | None = None
        self._lazy: dict[str, Path] = {}

    @property
    def path(self) -> str:
        """The profile that the trace was made from."""
        return str(self.meta["source"])

    @property
    def rank(self) -> int:
        """The rank that recorded it."""
        return int(self.meta["rank"])

    def has(self, table: str) -> bool:
        """Whether a stored table has any row."""
        return bool(self.meta["rows"].get(table))

    def query(self, row: type[Row], sql: str, /, **params: Any) -> Table[Row]:
        """The answer to a query as typed rows."""
        return Table(row, self.arrow(sql, **params))

    def arrow(self, sql: str, /, **params: Any) -> pa.Table:
        """The answer to a query as an Arrow table."""
        return fenced.run(self._connection(sql), sql, params, None)

    def batches(self, sql: str, /, rows: int = 1 << 16, **params: Any) -> Iterator[pa.RecordBatch]:
        """The answer to a query, batch by batch, for what is too large to hold."""
        batches: Iterator[pa.RecordBatch] = fenced.run(self._connection(sql), sql, params, rows)
        return batches

    def reading(self, reads: Reads) -> Trace:
        """The same trace, in which only these views and columns exist."""
        return Trace(self.folder, reads=reads, progress=self._progress)

    def _connection(self, sql: str) -> duckdb.DuckDBPyConnection:
        fenced.check_read_only(sql)
        if _LAZY not in self._lazy and _LAZY in sql.lower():
            self._lazy[_LAZY] = self._made_lazily()
            self._open = None
        if self._open is None:
            self._open = fenced.connect(self.folder, self.meta, self._lazy)
            for view in VIEWS:
                if view.lazy and view.name not in self._lazy:
                    continue
                if self._reads is None or view.name in self._reads:
                    only = self._reads[view.name] if self._reads else None
                    self._open.execute(f"CREATE VIEW {view.name} AS {view.sql(self.meta, only)}")
        return self._open

    def _made_lazily(self) -> Path:
        """The tree of all host events, made once and kept; beside a read-only store, in a temporary place."""
        from stepscope.store.tree import write_host_tree

        target = self.folder / f"{_LAZY}.parquet"
        if target.is_file():
            return target
        try:
            with locked(self.folder):
                return (
                    target if target.is_file() else write_host_tree(self.folder, self.folder, self._progress)
                )
        except OSError as refused:
            try:
                place = tempfile.mkdtemp(prefix="stepscope-")
                weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
                return write_host_tree(self.folder, Path(place), self._progress)
            except OSError as error:
                raise StepscopeError(
                    f"no place for the tree of host events: {refused}; {error}",
                    hint="free some space, or set TMPDIR to a folder with space",
                ) from error
