"""The engine for queries of other people: it can read one trace and can write nothing.

Three walls, each enough by itself. The statement is parsed, and every node of its tree must be of a kind that
only reads. The database has no file system: tables come to it through Arrow. And the files are not
writable. Memory, temporary files and time are limited.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import interrupts
from stepscope.errors import StepscopeError
from stepscope.patterns import late_pattern
from stepscope.store import connection as fenced
from stepscope.store.sums import StoreFiles
from stepscope.store.views import VIEWS
from stepscope.threads import unless_done_in

if TYPE_CHECKING:
    import duckdb

    from stepscope.store.meta import TraceMeta

__all__ = ["TIME_LIMIT_S", "ReadOnlyDatabase", "check", "time_limit"]

TIME_LIMIT_S = 600.0
LONGEST_SQL = 100_000
TEMPORARY = "8GiB"

_VIEWS = "views"
_VIEW_NAMES = {view.name for view in VIEWS}
_EXPLAIN = late_pattern(r"^\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
_NODES = {
    # queries
    *("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"),
    # what stands behind FROM
    *("EMPTY", "BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "PIVOT", "SHOW_REF"),
    # what stands behind the rest
    *("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "ORDER_MODIFIER", "DISTINCT_MODIFIER"),
    *("ORDER_DEFAULT", "ASCENDING", "DESCENDING", "ORDER_ASCENDING", "ORDER_DESCENDING"),
}
_EXPRESSIONS = {
    *("BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT"),
    *(
        "FUNCTION",
        "LAMBDA",
        "LAMBDA_REF",
        "OPERATOR",
        "PARAMETER",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
    ),
    *("TYPE", "WINDOW"),
}
_TABLE_FUNCTIONS = {
    *("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"),
    *("histogram", "histogram_values", "pragma_table_info", "pragma_version"),
    *("duckdb_columns", "duckdb_tables", "duckdb_views", "duckdb_schemas", "duckdb_functions"),
    *("duckdb_types", "duckdb_keywords"),
}
_OF_NO_TABLE = {"range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree"}
"""Functions that look at no table: others take the name of one as a text, or list them all."""
_NO_FUNCTIONS = {"write_log", "nextval", "setval", "sleep_ms", "getenv"}


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> frozenset[str] | None:
    """Refuses everything but one statement that only reads; gives the views it names, None if any may be."""
    import duckdb

    if len(sql) > LONGEST_SQL:
        raise StepscopeError(
            f"the query has {len(sql):,} characters, and at most {LONGEST_SQL:,} are read",
            hint="ask for less at once",
        )
    # What is explained with ANALYZE is done: it must be a SELECT, too.
    asked = _EXPLAIN.sub("", sql)
    try:
        kinds = [str(one.type).rpartition(".")[2] for one in connection.extract_statements(asked)]
        if len(kinds) != 1:
            raise StepscopeError(
                f"{len(kinds)} statements where one query is asked for",
                hint='stepscope query TRACE "SELECT …"',
            )
        [(written,)] = connection.execute("SELECT json_serialize_sql($1)", [asked]).fetchall()
    except duckdb.Error as error:
        raise fenced.explained(error) from error
    tree = json.loads(written)
    if kinds != ["SELECT"] or tree.get("error") or len(tree.get("statements", ())) != 1:
        raise _refused(kinds[0])
    return _check_tree(tree["statements"][0])


def _check_tree(tree: Any) -> frozenset[str] | None:
    """Refuses a tree with any node that is not known to only read, as what a later DuckDB may bring."""
    waiting, views = [tree], frozenset[str]()
    unknown = False
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            _check_node(node)
            named = _views_in(node)
            unknown = unknown or named is None
            views |= named or frozenset()
            # A constant is what was written; all that is in it is data.
            waiting += node.values() if node.get("class") != "CONSTANT" else ()
    return None if unknown else views


def _views_in(node: dict[str, Any]) -> frozenset[str] | None:
    """The view that a node of a tree names; None for one that may look at others, or at their list."""
    kind = node.get("type")
    if kind == "BASE_TABLE":
        name, schema = (str(node.get(part, "")).lower() for part in ("table_name", "schema_name"))
        if node.get("catalog_name") or schema not in ("", _VIEWS, "stored", "analyses"):
            return None
        if schema in ("stored", "analyses"):
            return frozenset()
        return frozenset({name}) if name in _VIEW_NAMES else None
    if kind == "TABLE_FUNCTION" and node["function"].get("function_name", "").lower() not in _OF_NO_TABLE:
        return None
    return None if kind == "SHOW_REF" else frozenset()


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("class") or node.get("type")
    known = _EXPRESSIONS if "class" in node else _NODES
    if isinstance(kind, str) and kind not in known and not kind.endswith("_TYPE_INFO"):
        raise _refused(kind.removesuffix("_QUERY_NODE").removesuffix("_NODE"))
    name = str(node.get("function_name", "")).lower()
    if node.get("type") == "TABLE_FUNCTION":
        name = str(node["function"].get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS:
            raise _refused(f"the table function {name}")
    elif name in _NO_FUNCTIONS:
        raise _refused(f"the function {name}")


def _refused(what: str) -> StepscopeError:
    return StepscopeError(
        f"{what} is not allowed: a trace is only read",
        hint="write a SELECT over the tables that stepscope query TRACE --schema shows",
    )


class ReadOnlyDatabase:
    """The stored tables and views of a trace in a database that has no way to a file."""

    def __init__(self, files: StoreFiles, meta: TraceMeta) -> None:
        self._files = files
        self._folder = files.folder
        self._meta = meta
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None
        self._derived: set[str] = set()
        self._made: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether anything was asked so far."""
        return self._database is not None

    def cursor(self, derived: dict[str, Path]) -> duckdb.DuckDBPyConnection:
        """A cursor of its own for every query; `derived` are the tables that were derived so far."""
        with self._lock, fenced.damage_named(self._folder):
            database = self._database = self._database or self._connected()
            fresh = {name: path for name, path in derived.items() if name not in self._derived}
            self._add(database, fresh)
            self._derived.update(fresh)
            cursor = fenced.cursor_of(database)
            cursor.execute(f"USE {_VIEWS}")
            return cursor

    def _connected(self) -> duckdb.DuckDBPyConnection:
        connection = fenced.unlocked()
        connection.execute(f"SET max_temp_directory_size = '{TEMPORARY}'")
        connection.execute(f"CREATE SCHEMA stored; CREATE SCHEMA analyses; CREATE SCHEMA {_VIEWS}")
        fenced.add_dictionaries(connection, self._files, self._meta)
        self._files.check_ends(fenced.SMALL_BYTES)
        paths = {name: self._folder / f"{name}.parquet" for name in self._meta.stored}
        self._add(connection, paths)
        fenced.lock(connection)
        return connection

    def have_views(self, names: frozenset[str] | None) -> None:
        """Makes those of these views, or of all, that are not there yet: to plan one takes a millisecond."""
        with self._lock, fenced.damage_named(self._folder):
            for view in VIEWS:
                is_asked = view.name not in self._made and (names is None or view.name in names)
                if self._database and is_asked and (not view.derived or view.derived in self._derived):
                    self._database.execute(f"CREATE VIEW {_VIEWS}.{view.name} AS {view.sql(self._meta)}")
                    self._made.add(view.name)

    def _add(self, connection: duckdb.DuckDBPyConnection, files: dict[str, Path]) -> None:
        import pyarrow.dataset

        connection.execute("USE stored")  # a view of an Arrow dataset is made in the schema in use
        for name, path in files.items():
            connection.from_arrow(pyarrow.dataset.dataset(path, format="parquet")).create_view(name)


@contextmanager
def time_limit(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupts what runs for longer, and says so."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        connection.interrupt()

    try:
        with unless_done_in(seconds, stop):
            yield
    except (StepscopeError, KeyboardInterrupt) as error:
        interrupts.pass_on()
        if over.is_set():
            raise StepscopeError(
                f"the query was stopped: it ran for more than {seconds:g} s",
                hint="ask for less, or allow more: stepscope query --time-limit SECONDS",
            ) from error
        raise
