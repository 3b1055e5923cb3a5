"""What a trace and its limited forms have in common: one database, the tables made so far, answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.errors import StepscopeError
from stepscope.store import connection as fenced
from stepscope.store.derived import DerivedTableBuilder
from stepscope.store.layout import read_meta
from stepscope.store.read_only import ReadOnlyDatabase
from stepscope.store.sums import DamagedStore, StoreFiles
from stepscope.store.views import VIEWS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.store.views import View

__all__ = ["SMALL_EVENTS", "Database", "Reads", "Remake"]

Found = TypeVar("Found")
Reads = dict[str, tuple[str, ...]]
"""Which views and which of their columns an analysis reads."""

SMALL_EVENTS = 100_000
"""Up to so many events what a question costs is its planning, not its rows."""

LIMIT_OURS = False
"""Whether our own analyses of small traces are limited to what they declare, too; the tests set it."""

Remake = Callable[[DamagedStore], None]
"""Makes a damaged store again from what it was made of, or raises the error that it was given."""

_WHOLE = "stored_whole"
"""The schema of views that were made tables. All schemas but those of analyses begin with `stored`."""
_VIEWS = {view.name: view for view in VIEWS}


class Database:
    """The database of a trace, with a schema for every set of views and columns that is asked for."""

    def __init__(self, folder: Path, remake: Remake | None) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self._files = StoreFiles(folder)
        self._files.check_sizes()
        self._remake = remake
        self._remaking = threading.RLock()
        self.is_small = sum(self.meta.rows.values()) <= SMALL_EVENTS
        self.derived_tables = DerivedTableBuilder()
        self._answers: dict[Any, Any] = {}
        self._locks: dict[Any, threading.RLock] = {}
        self._connecting = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._seen: set[str] = set()
        self._schemas: dict[Any, str] = {}
        self._made: set[tuple[str, str]] = set()
        self._cursors: dict[tuple[int, str], duckdb.DuckDBPyConnection] = {}
        self._read_only = ReadOnlyDatabase(self._files, self.meta)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once; who asks meanwhile waits for it."""
        with self._locks.setdefault(key, threading.RLock()):
            if key not in self._answers:
                self._answers[key] = make()
            return self._answers[key]

    def cursor(
        self, reads: Reads | None, names: Iterable[str], *, own: bool, ours: bool
    ) -> duckdb.DuckDBPyConnection:
        """A cursor in a schema that has the named views, as far as they are read, or whole for None.

        A thread has one cursor for each schema, unless it asks for one of its own. What is `ours` keeps to
        its reads, as tests show: it sees small tables whole, for views of them would have to be planned.
        """
        with self._connecting:
            database = self._connected()
            whole = ours and reads is not None and self.is_small and not LIMIT_OURS
            schema = _WHOLE if whole else self._schema(reads)
            for name in names:
                if not whole:
                    self._have_view(schema, _VIEWS[name], reads)
                elif name in (reads or ()):
                    self._have_whole(_VIEWS[name])
            asked = (threading.get_ident(), schema)
            cursor = None if own else self._cursors.get(asked)
            if cursor is None:
                cursor = fenced.cursor_of(database)
                cursor.execute(f"USE {schema}")
                if not own:
                    self._cursors[asked] = cursor
            return cursor

    def names(self) -> str | None:
        """All names of events, one a line; None where they are too many to look through."""
        return self._undamaged(lambda: fenced.names_of(self._files))

    def dictionary(self, name: str) -> pa.Table:
        """A table of what numbers stand for, without the database."""
        return self._undamaged(lambda: self._files.arrow(name).read_all())

    def read_only_cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for a query that is not ours, which sees everything and can change nothing."""
        return self._undamaged(lambda: self._read_only.cursor(dict(self.derived_tables.paths)))

    def have_read_only_views(self, names: frozenset[str] | None) -> None:
        """Makes the views that a query which is not ours names, or all for None."""
        self._read_only.have_views(names)

    @contextmanager
    def beside(self, tables: dict[str, Path]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor that sees some files as tables of the schema `stored`, for as long as it is in use."""
        if any(path.parent != self.folder for path in tables.values()):
            # A database sees the folders that it was opened with: for others it takes one of their own.
            found = {**self.derived_tables.paths, **tables}
            yield fenced.cursor_of(self._connect(found))
            return
        with self._connecting:
            cursor = fenced.cursor_of(self._connected())
            undo = [fenced.add_parquet(cursor, name, path) for name, path in tables.items()]
        try:
            yield cursor
        finally:
            cursor.execute("; ".join(undo))

    def check(self, tables: Iterable[str]) -> None:
        """Compares the files of stored tables with their checksums, before they are first read."""
        stored = self.meta.stored
        files = [f"{name}.parquet" for name in tables if name in stored]
        self._undamaged(lambda: self._files.check(files))

    def _undamaged(self, read: Callable[[], Found]) -> Found:
        """Reads, if need be from a store that was made again."""
        try:
            return read()
        except DamagedStore as damage:
            if self._remake is None:
                raise
            with self._remaking:
                try:
                    return read()  # another thread may have made it again meanwhile
                except DamagedStore:
                    self._remake(damage)
                    self._look_again()
                    return read()

    def _look_again(self) -> None:
        """Goes on with a store that was made again, if it is what it was or nothing of it was read."""
        fresh = StoreFiles(self.folder)
        if fresh.sums != self._files.sums and (self._database is not None or self._read_only.is_open):
            raise StepscopeError(
                f"the store {self.folder} was damaged and has been made again",
                hint="type the command again",
            )
        self._files = fresh
        if not self._read_only.is_open:
            self.meta = read_meta(self.folder)
            self._read_only = ReadOnlyDatabase(fresh, self.meta)

    def _connect(self, extra: dict[str, Path]) -> duckdb.DuckDBPyConnection:
        return self._undamaged(lambda: fenced.connect(self._files, self.meta, extra, small=self.is_small))

    def _schema(self, reads: Reads | None) -> str:
        asked = None if reads is None else tuple(sorted(reads.items()))
        if asked not in self._schemas:
            self._schemas[asked] = f"stored_views_{len(self._schemas)}"
            self._execute(f"CREATE SCHEMA {self._schemas[asked]}")
        return self._schemas[asked]

    def _have_view(self, schema: str, view: View, reads: Reads | None) -> None:
        if (schema, view.name) in self._made or (view.derived and view.derived not in self._seen):
            return
        if reads is None:
            self._make("VIEW", schema, view, view.sql(self.meta))
        elif view.name in reads and self.is_small:
            # To plan the joins of a view again in every query costs more than to have its rows.
            self._have_whole(view)
            columns = ", ".join(f'"{name}"' for name in view.names if name in reads[view.name])
            self._make("VIEW", schema, view, f"SELECT {columns} FROM {_WHOLE}.{view.name}")
        elif view.name in reads:
            self._make("VIEW", schema, view, view.sql(self.meta, reads[view.name]))

    def _have_whole(self, view: View) -> None:
        if (_WHOLE, view.name) in self._made:
            return
        sql = view.sql(self.meta)
        around, where = view.part_of
        if around:
            self._have_whole(_VIEWS[around])
            sql = f"SELECT * FROM {_WHOLE}.{around} WHERE {where}"
        self._make("TABLE", _WHOLE, view, sql)

    def _make(self, kind: str, schema: str, view: View, sql: str) -> None:
        self._execute(f"CREATE {kind} {schema}.{view.name} AS {sql}")
        self._made.add((schema, view.name))

    def _execute(self, sql: str) -> None:
        self._connected().execute(sql)

    def _connected(self) -> duckdb.DuckDBPyConnection:
        # A copy: another thread may add a table meanwhile, which would then count as seen and not be there.
        paths = dict(self.derived_tables.paths)
        fresh = {name: path for name, path in paths.items() if name not in self._seen}
        # A database sees the folders that it was opened with, and no others.
        elsewhere = any(path.parent != self.folder for path in fresh.values())
        if self._database is None or elsewhere:
            self._database = self._connect(paths)
            self._database.execute(f"CREATE SCHEMA {_WHOLE}")
            self._schemas.clear()
            self._made.clear()
            self._cursors.clear()
        else:
            for name, path in fresh.items():
                fenced.add_parquet(self._database, name, path)
        self._seen.update(fresh)
        return self._database
