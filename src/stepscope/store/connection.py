"""DuckDB, fenced in: it sees the files of one store and nothing else of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import interrupts
from stepscope.errors import OutOfMemoryError, StepscopeError
from stepscope.memory import address_space, is_lack_of_memory, not_enough, share_for_database
from stepscope.patterns import late_pattern
from stepscope.schema import DICTIONARIES
from stepscope.store.layout import check_place
from stepscope.store.leftovers import spill_folder
from stepscope.store.quick_duckdb import arrow_of
from stepscope.store.sums import StoreFiles

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from stepscope.store.meta import TraceMeta

__all__ = [
    "FEW_ROWS",
    "add_arrow",
    "add_dictionaries",
    "add_parquet",
    "connect",
    "cursor_of",
    "damage_named",
    "explained",
    "fetch",
    "few",
    "lock",
    "names_of",
    "run",
    "unlocked",
]

_EVERY_CURSOR: dict[str, str | bool | int | float | list[str]] = {
    # Variables of the program are no tables.
    "python_enable_replacements": False,
    # Where it guesses that few events come, it would compare each with every step.
    "asof_loop_join_threshold": 0,
}
"""What is set when connecting holds for every cursor; what is set later, for one."""

_FOR_MANY_ROWS = (
    "aggregate_function_rewriter",
    "aggregate_reuse",
    "common_aggregate",
    "common_subexpressions",
    "common_subplan",
    "compressed_materialization",
    "cte_filter_pusher",
    "distinct_aggregate_rewrite",
    "duplicate_groups",
    "grouping_sets",
    "join_elimination",
    "join_filter_pushdown",
    "late_materialization",
    "partial_aggregate_pushdown",
    "partitioned_execution",
    "projection_placement",
    "projection_pullup",
    "redundant_order_keys",
    "regex_range",
    "reorder_filter",
    "row_group_pruner",
    "sampling_pushdown",
    "scalar_fn_pushdown",
    "statistics_propagation",
    "top_n_window_elimination",
    "type_pushdown",
    "window_rewriter",
    "window_self_join",
)
"""Optimizers that spare rows: where there are few, to look for what they could spare costs more."""

MANY_NAMES = 200_000

FEW_ROWS = 4096
"""To hand over so many rows one by one costs less than to plan their query once more."""

_INTERRUPTED = late_pattern(r"^Query interrupted$|^INTERRUPT Error|(^|: )KeyboardInterrupt:")
"""What DuckDB and Arrow make of a KeyboardInterrupt that a signal handler raised in them."""

SMALL_BYTES = 4 << 20
"""Files up to this size are held in memory: to open one costs more than to read it."""


def connect(
    files: StoreFiles, meta: TraceMeta, extra: dict[str, Path], *, small: bool
) -> duckdb.DuckDBPyConnection:
    """A connection with the stored tables in schema `stored`; its configuration is locked."""
    import duckdb

    folder = files.folder
    check_place(folder)
    # The same on every machine: which of several equally frequent values is taken depends on it.
    connection = unlocked(threads=1 if small else 2)
    if small:
        with suppress(duckdb.ParserException):  # a version that knows one of them by another name: slower
            connection.execute(f"SET disabled_optimizers = '{','.join(_FOR_MANY_ROWS)}'")
    folders = sorted({str(folder.resolve()), *(str(path.parent.resolve()) for path in extra.values())})
    connection.execute(f"SET allowed_directories = [{', '.join(_literal(name + '/') for name in folders)}]")
    with damage_named(folder):
        # One transaction for all: each costs more than a small table.
        connection.execute("BEGIN; CREATE SCHEMA stored; CREATE SCHEMA analyses")
        add_dictionaries(connection, files, meta)
        files.check_ends(SMALL_BYTES)
        paths = {name: folder / f"{name}.parquet" for name in meta.stored} | extra
        for name, path in paths.items():
            add_parquet(connection, name, path)
        connection.execute("COMMIT")
    lock(connection)
    return connection


def unlocked(*, threads: int = 2) -> duckdb.DuckDBPyConnection:
    """An empty database in memory, which still takes settings."""
    import duckdb

    config = {**_EVERY_CURSOR, "threads": threads, "memory_limit": f"{share_for_database()}B"}
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    connection.execute("SET preserve_insertion_order = false")
    # What does not fit in memory is not to appear in the user's working folder.
    connection.execute(f"SET temp_directory = {_literal(str(spill_folder()))}")
    return connection


def cursor_of(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor that a signal stops."""
    cursor = database.cursor()
    interrupts.interruptible(cursor)
    return cursor


def lock(connection: duckdb.DuckDBPyConnection) -> None:
    """From now on it sees no other files, and no setting can be changed."""
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")


@contextmanager
def damage_named(folder: Path) -> Iterator[None]:
    """Says which store is damaged, where opening its files fails."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except RuntimeError as error:
        _pass_on(error)
        raise
    except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
        _pass_on(error)
        if is_lack_of_memory(error):
            raise not_enough() from error
        raise StepscopeError(
            f"the store {folder} is damaged: {str(error).splitlines()[0]}",
            hint=f"remove it and ingest again: rm -r {folder}",
        ) from error


def add_dictionaries(connection: duckdb.DuckDBPyConnection, files: StoreFiles, meta: TraceMeta) -> None:
    """What the store says of itself, and the texts that the numbers in its tables stand for."""
    add_arrow(connection, "stored.meta", _meta_table(meta))
    for table in DICTIONARIES:
        add_arrow(connection, f"stored.{table.name}", files.arrow(table.name).read_all())


def names_of(files: StoreFiles) -> str | None:
    """All names of events, one a line; None where they are too many to look through."""
    reader = files.arrow("names")
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    if sum(batch.num_rows for batch in batches) > MANY_NAMES:
        return None
    return "\n".join(text or "" for batch in batches for text in batch["text"].to_pylist())


def add_parquet(connection: duckdb.DuckDBPyConnection, name: str, path: Path) -> str:
    """A file as a table of the schema `stored`; gives what takes it away again."""
    # A folder called `event=5` is no partition: its name is not to replace the column.
    scan = f"read_parquet({_literal(str(path.resolve()))}, hive_partitioning = false)"
    kind = "TABLE" if path.stat().st_size < SMALL_BYTES else "VIEW"
    connection.execute(f"CREATE {kind} stored.{name} AS SELECT * FROM {scan}")
    return f"DROP {kind} stored.{name}"


def add_arrow(connection: duckdb.DuckDBPyConnection, name: str, table: Any) -> None:
    """A small table, taken over: what is merely registered is seen by one cursor only."""
    connection.register("taken_over", table)
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM taken_over")
    connection.unregister("taken_over")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _meta_table(meta: TraceMeta) -> Any:
    import json

    import pyarrow as pa

    written = meta.as_json()
    left_out = ("metadata", "path", "version")
    sources = [
        {key: value for key, value in one.items() if key not in left_out} for one in written["sources"]
    ]
    summed = {"events": meta.events, "bytes": meta.bytes, "compressed_bytes": meta.compressed_bytes}
    damage = [one for source in sources for one in source["damage"]]
    entries = {
        **{key: value for key, value in written.items() if key != "sources"},
        **sources[0]["counters"],
        **{key: value for key, value in sources[0].items() if key != "counters"},
        **summed,
        "damage": damage,
        "sources": sources,
        **meta.metadata,
    }
    return pa.table(
        {
            "key": pa.array(list(entries), pa.string()),
            "value": pa.array([json.dumps(value) for value in entries.values()], pa.string()),
        }
    )


def run(connection: duckdb.DuckDBPyConnection, sql: str, params: dict[str, Any], rows: int | None) -> Any:
    """Runs a query, whole or by batches of so many rows; what is wrong with it is said in a line."""
    import duckdb

    try:
        found = arrow_of(connection, sql, params, rows)
        return found if rows is None else _explaining(found)
    except (duckdb.Error, RuntimeError) as error:
        raise explained(error) from error


def fetch(connection: duckdb.DuckDBPyConnection, sql: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a query and gives its rows: it is planned once, where a relation is planned twice."""
    import duckdb

    try:
        found = connection.execute(sql, params or None)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    except (duckdb.Error, RuntimeError) as error:
        raise explained(error) from error


def few(connection: duckdb.DuckDBPyConnection, sql: str, params: dict[str, Any]) -> pa.Table | None:
    """The answer to a query as an Arrow table if it has few rows, of plain types: again, planned once."""
    import duckdb
    import pyarrow as pa

    kinds = {"BIGINT": pa.int64(), "INTEGER": pa.int32(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}
    kinds |= {"VARCHAR": pa.string(), "JSON": pa.string()}
    try:
        found = connection.execute(sql, params or None)
        names, types = zip(
            *((name, kinds.get(str(kind))) for name, kind, *_ in found.description), strict=True
        )
        rows = found.fetchmany(FEW_ROWS) if None not in types else []
    except (duckdb.Error, RuntimeError) as error:
        raise explained(error) from error
    if len(rows) == FEW_ROWS or None in types:
        if hasattr(found, "abort"):  # DuckDB 2.0 wants to be told that nobody fetches the rest
            found.abort()
        return None
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, names=names)


def _explaining(reader: Any) -> Iterator[Any]:
    """The batches of a query that may yet fail: some errors come only with the row that causes them.

    There is always one, for its columns.
    """
    import duckdb
    import pyarrow as pa

    try:
        first = next(reader, None)
        yield first or pa.RecordBatch.from_pylist([], schema=reader.schema)
        yield from reader
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise explained(error) from error


def _pass_on(error: Exception) -> None:
    """An interrupt is no error, and nobody may take it for one."""
    import duckdb

    if interrupts.caught() or isinstance(error, duckdb.InterruptException) or _INTERRUPTED.search(str(error)):
        raise KeyboardInterrupt from error


def explained(error: Exception) -> StepscopeError:
    """What is wrong with a query, in a line; an interrupt is raised as what it is."""
    import duckdb

    _pass_on(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, duckdb.OutOfMemoryException) and address_space() is None:
        return OutOfMemoryError(f"the query failed: {lines[0]}", hint="ask for fewer rows or columns at once")
    if is_lack_of_memory(error):
        return not_enough()
    message = re.sub(r"^(Binder|Catalog|Parser|Permission|Invalid Input) Error: ", "", lines[0])
    message += "".join(
        f" {line.strip()}" for line in lines[1:] if line.startswith(("Candidate", "Did you mean"))
    )
    return StepscopeError(
        f"the query failed: {message}", hint="stepscope query TRACE --schema shows tables and columns"
    )
