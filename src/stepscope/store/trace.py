"""A stored trace: what is in it, and answers in SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError
from stepscope.patterns import late_pattern
from stepscope.schema import DERIVED, SIDE, STORED
from stepscope.showing import InNotebook
from stepscope.store import connection as fenced
from stepscope.store import read_only
from stepscope.store.columns import ROW_GROUP
from stepscope.store.database import Database, Reads, Remake
from stepscope.store.views import VIEWS, tables_of
from stepscope.tables import Table

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.store.measured import MeasuredStep
    from stepscope.store.meta import TraceMeta
    from stepscope.streams import Progress

__all__ = ["Reads", "Trace"]

Row = TypeVar("Row")
Analyst = Callable[["Trace", str], "pa.Table"]
"""Answers for the tables `analyses.NAME` of a query."""

_WORDS = late_pattern(r"[a-z_]+")
_IN_STORED = late_pattern(r"\bstored\.[a-z_]+")
_STORED = late_pattern(r"\bstored\w*\"?\s*\.")
_ANALYSES = late_pattern(r"\banalyses\s*\.\s*\"?(\w+)", re.IGNORECASE)
_DERIVED = tuple(name for tables in DERIVED for name in tables.names)
_STORED_NAMES = tuple(table.name for table in (*STORED, *SIDE))
_TABLES_OF = {view.name: tables_of(view) for view in VIEWS}
_BY_TEXT = {"query", "query_table", "histogram", "histogram_values"}
"""Functions of SQL that take the name of a table as a text, which may be put together in any way."""


class _Named(NamedTuple):
    """What the words of a query may name."""

    derived: tuple[str, ...]
    views: tuple[str, ...]
    tables: tuple[str, ...]
    stored: bool


@lru_cache(maxsize=4096)
def _named_in(sql: str) -> _Named:
    """Looks once at the words of a query: most are asked of every trace in the same words."""
    text = sql.lower()
    words = set(_WORDS.findall(text))
    stored = "stored" in text
    # `stored.ops` is the table: who names nothing else needs no view of it.
    bare = set(_WORDS.findall(_IN_STORED.sub(" ", text))) if stored else words
    any_table = not words.isdisjoint(_BY_TEXT)
    return _Named(
        tuple(name for name in _DERIVED if name in words),
        tuple(view.name for view in VIEWS if view.name in bare),
        tuple(name for name in _STORED_NAMES if any_table or name in words),
        stored and bool(_STORED.search(text)),
    )


class Trace(InNotebook):
    """A trace in a store. Large tables stay on disk; answers are Arrow tables."""

    def __init__(
        self,
        folder: Path,
        *,
        progress: Progress | None = None,
        analyst: Analyst | None = None,
        remake: Remake | None = None,
    ) -> None:
        self.folder = folder
        self._reads: Reads | None = None
        self._progress = progress
        self._analyst = analyst
        self._shared = Database(folder, remake)
        # What analyses and the makers of tables ask was looked at when it was written.
        self._trusted = False
        self._ours = False
        self.time_limit_s = read_only.TIME_LIMIT_S
        self.measured: MeasuredStep | None = None
        """The step without the profiler, where the run measured it; to be told before anything is asked."""

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

    @property
    def is_small(self) -> bool:
        """Whether it is so small that what a question costs is its planning, not its rows."""
        return self._shared.is_small

    @property
    def _has_few_rows(self) -> bool:
        """Whether no answer is expected to be too long for `few`: it would have to be asked for again."""
        return self.meta.events <= fenced.FEW_ROWS

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once for the trace and kept for all that build on it."""
        return self._shared.once(key, make)

    def names_in(self, view: str) -> list[str]:
        """The distinct names of the events of a view, in order; its column `name` must be declared."""
        if self._reads is not None and "name" not in self._reads.get(view, ()):
            raise StepscopeError(
                f"the names of {view} are not declared", hint=f'reads={{"{view}": ("name", …)}}'
            )
        sql = f"SELECT text FROM stored.names WHERE id IN (SELECT name FROM stored.{view}) ORDER BY text"
        found = self.once(("names", view), lambda: self.reading(None).rows(sql))
        return [row["text"] for row in found if row["text"] is not None]

    def may_have_name(self, pattern: str) -> bool:
        """Whether any event may have a name in which a regular expression is found.

        A cheap look before an expensive question; a trace with very many names may have any.
        """
        names = self.once("texts of names", self._shared.names)
        return names is None or re.search(pattern, names, re.MULTILINE) is not None

    def has_name(self, pattern: str) -> bool:
        """Whether any event has a name in which a regular expression is found.

        It is one for Python and for SQL, with `^` and `$` for the ends of a name.
        """
        if not self.may_have_name(pattern):
            return False
        if self.once("texts of names", self._shared.names) is not None:
            return True
        names = self.reading({"names": ("text",)}, ours=True)
        sql = "SELECT 1 FROM names WHERE regexp_matches(text, $pattern) LIMIT 1"
        return bool(names.rows(sql, pattern=pattern))

    def has(self, table: str) -> bool:
        """Whether a stored table has any row."""
        return bool(self.meta.rows.get(table))

    def table(self, name: str, /, **options: Any) -> Table[Any]:
        """The table of an analysis, as `stepscope show` has it: `trace.table("ops", by="user_frame")`."""
        analysis = registry.load("analyses", name)
        hints = get_type_hints(analysis)
        known = [one.name for one in signature(analysis).parameters.values() if one.kind is one.KEYWORD_ONLY]
        for option, value in options.items():
            if option not in known:
                has = f"it has: {', '.join(known)}" if known else "it has none"
                raise StepscopeError(f"{name} has no option {option!r}", hint=has, exit_code=2)
            choices = get_args(hints[option]) if get_origin(hints[option]) is Literal else (value,)
            if value not in choices:
                choose = f"choose from {', '.join(map(repr, choices))}"
                raise StepscopeError(f"{name} has no {option}={value!r}", hint=choose, exit_code=2)
        found: Table[Any] = analysis(self, **options)
        return found

    def query(self, row: type[Row], sql: str, /, **params: Any) -> Table[Row]:
        """The answer to a query as typed rows."""
        return Table(row, self.arrow(sql, **params))

    def rows(self, sql: str, /, **params: Any) -> list[dict[str, Any]]:
        """The answer to a query as dictionaries: for few rows, which cost less than an Arrow table."""
        cursor = self._cursor(sql)
        with self._limited(cursor):
            return fenced.fetch(cursor, sql, params)

    def arrow(self, sql: str, /, **params: Any) -> pa.Table:
        """The answer to a query as an Arrow table."""
        if (
            self._trusted
            and self.is_small
            and (found := fenced.few(self._cursor(sql), sql, params)) is not None
        ):
            return found
        cursor = self._cursor(sql)
        with self._limited(cursor):
            return fenced.run(cursor, sql, params, None)

    def batches(self, sql: str, /, rows: int = 1 << 16, **params: Any) -> Iterator[pa.RecordBatch]:
        """The answer to a query, batch by batch, for what is too large to hold."""
        if self._trusted and self._has_few_rows:
            return iter(self.arrow(sql, **params).to_batches())
        # A cursor of its own, for others are asked before the last batch has come.
        cursor = self._cursor(sql, own=True)
        with self._limited(cursor):
            batches: Iterator[pa.RecordBatch] = fenced.run(cursor, sql, params, rows)
        return batches if self._trusted else self._each_limited(cursor, batches)

    def _limited(self, cursor: duckdb.DuckDBPyConnection) -> AbstractContextManager[None]:
        """A limit on the time of a query that is not ours."""
        return nullcontext() if self._trusted else read_only.time_limit(cursor, self.time_limit_s)

    def _each_limited(
        self, cursor: duckdb.DuckDBPyConnection, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Limits the wait for each batch, but not the time that somebody takes to use it."""
        while True:
            with self._limited(cursor):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    @contextmanager
    def beside(self, tables: dict[str, Path]) -> Iterator[Callable[[str], Iterator[pa.RecordBatch]]]:
        """Answers queries over what is stored and over some files, which are tables of `stored` meanwhile."""
        with self._shared.beside(tables) as cursor:

            def ask(sql: str) -> Iterator[pa.RecordBatch]:
                if self._has_few_rows and (found := fenced.few(cursor, sql, {})) is not None:
                    return iter(found.to_batches())
                batches: Iterator[pa.RecordBatch] = fenced.run(cursor, sql, {}, ROW_GROUP)
                return batches

            yield ask

    def reading(self, reads: Reads | None, *, ours: bool = False) -> Trace:
        """The same trace, in which only these views and columns exist, or for None all that is stored.

        What is `ours` is known to read no others.
        """
        limited = copy(self)
        limited._reads, limited._analyst, limited._trusted = reads, None, True  # noqa: SLF001  # its own class
        limited._ours = ours  # noqa: SLF001
        return limited

    def check_stored(self, tables: Iterable[str] = _STORED_NAMES) -> None:
        """Compares what is stored with its checksums, for those who read the files themselves."""
        self._shared.check(tables)

    def dictionary(self, name: str) -> pa.Table:
        """The rows of `names`, `threads`, `skeletons` or `runs`, without opening a database for them."""
        return self._shared.dictionary(name)

    def _check(self, named: _Named) -> None:
        """Compares the tables that a query may read with their checksums, if it is the first."""
        views = named.views if self._reads is None else (name for name in named.views if name in self._reads)
        self._shared.check(name for view in views for name in _TABLES_OF[view])
        if self._reads is None:
            self._shared.check(named.tables)

    def _cursor(self, sql: str, *, own: bool = False) -> duckdb.DuckDBPyConnection:
        interrupts.pass_on()
        named = _named_in(sql)
        if named.stored and self._reads is not None:
            raise StepscopeError(
                "the schema `stored` does not exist for what declares its reads",
                hint="name views and columns in reads=…; stepscope query TRACE --schema shows them",
            )
        self._check(named)
        for name in named.derived:
            self._shared.derived_tables.have(name, self.reading(None), self._progress)
        if self._trusted:
            return self._shared.cursor(self._reads, named.views, own=own, ours=self._ours)
        return self._read_only_cursor(sql)

    def _read_only_cursor(self, sql: str) -> duckdb.DuckDBPyConnection:
        """For a query that is not ours: a cursor that can only read, once it is seen that the query does."""
        cursor = self._shared.read_only_cursor()
        self._shared.have_read_only_views(read_only.check(cursor, sql))
        if self._analyst:
            for name in sorted({found.lower() for found in _ANALYSES.findall(sql)}):
                fenced.add_arrow(cursor, f"analyses.{name}", self._analyst(self, name))
        return cursor
