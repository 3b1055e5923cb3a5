"""A stored trace: what is in it, and answers in SQL."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.schema import DERIVED
from stepscope.store import connection as fenced
from stepscope.store.derived import DerivedTableBuilder
from stepscope.store.layout import read_meta
from stepscope.store.views import VIEWS
from stepscope.tables import Table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.store.meta import TraceMeta
    from stepscope.streams import Progress

__all__ = ["Reads", "Trace"]

Row = TypeVar("Row")
Reads = dict[str, tuple[str, ...]]
"""Which views and which of their columns an analysis reads."""

Analyst = Callable[["Trace", str], "pa.Table"]
"""Answers for the tables `analyses.NAME` of a query."""

_WORDS = re.compile(r"[a-z_]+")
_ANALYSES = re.compile(r"\banalyses\s*\.\s*\"?(\w+)", re.IGNORECASE)


class _Shared:
    """What a trace and its limited forms have in common: one database, tables made so far, answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self.derived_tables = DerivedTableBuilder()
        self._answers: dict[Any, Any] = {}
        self._locks: dict[Any, threading.RLock] = {}
        self._connecting = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._seen: dict[str, Path] = {}
        self._schemas: dict[Any, str] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once; who asks meanwhile waits for it."""
        with self._locks.setdefault(key, threading.RLock()):
            if key not in self._answers:
                self._answers[key] = make()
            return self._answers[key]

    def cursor(self, reads: Reads | None) -> duckdb.DuckDBPyConnection:
        """A cursor of its own for every query, in a schema that has these views and columns alone."""
        with self._connecting:
            return self._cursor(reads)

    def _cursor(self, reads: Reads | None) -> duckdb.DuckDBPyConnection:
        database = self._connected()
        asked = None if reads is None else tuple(sorted(reads.items()))
        if asked not in self._schemas:
            schema = self._schemas[asked] = f"views_{len(self._schemas)}_{len(self._seen)}"
            database.execute(f"CREATE SCHEMA {schema}")
            for view in VIEWS:
                if (not view.derived or view.derived in self._seen) and (reads is None or view.name in reads):
                    only = reads[view.name] if reads else None
                    database.execute(f"CREATE VIEW {schema}.{view.name} AS {view.sql(self.meta, only)}")
        cursor = database.cursor()
        cursor.execute(f"USE {self._schemas[asked]}")
        return cursor

    def _connected(self) -> duckdb.DuckDBPyConnection:
        fresh = {name: path for name, path in self.derived_tables.paths.items() if name not in self._seen}
        # A database sees the folders that it was opened with, and no others.
        elsewhere = any(path.parent != self.folder for path in fresh.values())
        if self._database is None or elsewhere:
            self._database = fenced.connect(self.folder, self.meta, self.derived_tables.paths)
        else:
            for name, path in fresh.items():
                fenced.add_parquet(self._database, name, path)
        if fresh:
            self._seen = dict(self.derived_tables.paths)
            self._schemas.clear()  # their views know nothing of the new tables
        return self._database


class Trace:
    """A trace in a store. Large tables stay on disk; answers are Arrow tables."""

    def __init__(
        self, folder: Path, *, progress: Progress | None = None, analyst: Analyst | None = None
    ) -> None:
        self.folder = folder
        self._reads: Reads | None = None
        self._progress = progress
        self._analyst = analyst
        self._shared = _Shared(folder)

    @property
    def meta(self) -> TraceMeta:
        """What the store says of itself: its sources, and under `metadata` what the profile says."""
        return self._shared.meta

    @property
    def path(self) -> str:
        """The profile that the trace was made from."""
        return self.meta.source

    @property
    def rank(self) -> int:
        """The rank that recorded it."""
        return self.meta.rank

    @property
    def derived(self) -> dict[str, Path]:
        """The tables that were derived so far, and where they are."""
        return self._shared.derived_tables.paths

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once for the trace and kept for all that build on it."""
        return self._shared.once(key, make)

    def has(self, table: str) -> bool:
        """Whether a stored table has any row."""
        return bool(self.meta.rows.get(table))

    def query(self, row: type[Row], sql: str, /, **params: Any) -> Table[Row]:
        """The answer to a query as typed rows."""
        return Table(row, self.arrow(sql, **params))

    def arrow(self, sql: str, /, **params: Any) -> pa.Table:
        """The answer to a query as an Arrow table."""
        return fenced.run(self._cursor(sql), sql, params, None)

    def batches(self, sql: str, /, rows: int = 1 << 16, **params: Any) -> Iterator[pa.RecordBatch]:
        """The answer to a query, batch by batch, for what is too large to hold."""
        batches: Iterator[pa.RecordBatch] = fenced.run(self._cursor(sql), sql, params, rows)
        return batches

    def reading(self, reads: Reads | None) -> Trace:
        """The same trace, in which only these views and columns exist."""
        limited = copy(self)
        limited._reads, limited._analyst = reads, None  # noqa: SLF001  # its own class
        return limited

    def _cursor(self, sql: str) -> duckdb.DuckDBPyConnection:
        if self._reads is None:  # what an analysis asks is ours, and was checked when it was written
            fenced.check_read_only(sql)
        words = set(_WORDS.findall(sql.lower()))
        for name in (name for tables in DERIVED for name in tables.names):
            if name in words:
                self._shared.derived_tables.have(name, self.reading(None), self._progress)
        analyses = sorted({found.lower() for found in _ANALYSES.findall(sql)})
        found = {name: self._analyst(self, name) for name in analyses} if self._analyst else {}
        cursor = self._shared.cursor(self._reads)
        for name, table in found.items():
            fenced.add_arrow(cursor, f"analyses.{name}", table)
        return cursor
