"""Tables of a SQLite file as Arrow batches: read natively, page by page, so that no SQL of the file is run.

The schema is read from the file as any other table, and the columns from its `CREATE TABLE`. Only what our
reader does not know goes through Python's `sqlite3`, which is slower: texts in UTF-16, and files with changes
that still lie in a write-ahead log.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from stepscope import _native
from stepscope.records import dataclass
from stepscope.store.columns import nulls
from stepscope.store.meta import Damage

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Database", "SqliteTable"]

ROWS = 1 << 17
"""Rows of a batch."""
_SLOW_ROWS = 1 << 16  # of a batch that is made of Python's objects

_MOST_TABLES = 20_000
_MOST_COLUMNS = 2_000
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|'(?:[^']|'')*'|\w+|[^\s\w]""",
    re.DOTALL,
)
_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
_AFTER_TYPE = (*_CONSTRAINTS, "NOT", "NULL", "DEFAULT", "COLLATE", "REFERENCES", "GENERATED", "AS")


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """One table: where it begins, and the place of each column in a row, by its name in small letters."""

    name: str
    root: int
    places: Mapping[str, int]
    rowid: str | None = None
    """The column that is the row's number."""
    without_rowid: bool = False


class Database:
    """A SQLite file that is only read. `damage` has what could not be read, and grows while it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._lost: dict[tuple[str, str], int] = {}
        first = _native.SqliteScan(self._file.fileno(), 1, _SCHEMA)
        self.refusal = first.refusal
        """Why it cannot be read at all."""
        self._encoding = first.encoding
        self._log = _log_of(path)
        self.tables: dict[str, SqliteTable] = {}
        """By their names in small letters; views and indexes are not among them."""
        if not self.refusal:
            self._read_schema(first)

    def _read_schema(self, scan: _native.SqliteScan) -> None:
        if self._slow:
            with contextlib.suppress(sqlite3.Error), self._connected() as opened:
                found = opened.execute("SELECT type, name, rootpage, sql FROM sqlite_schema LIMIT 20000")
                self._keep_tables(found.fetchall())
            return
        rows: list[tuple[Any, ...]] = []
        for batch in _batches(scan, ["type", "name", "root", "sql"], ["string", "string", "int64", "string"]):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
            if len(rows) > _MOST_TABLES:
                break
        self._keep_tables(rows)
        self._count("its list of tables", scan.lost)

    def _keep_tables(self, rows: list[tuple[Any, ...]]) -> None:
        for kind, name, root, sql in rows:
            plain = isinstance(name, str) and isinstance(sql, str) and isinstance(root, int)
            if kind == "table" and plain and 0 < root < 1 << 32 and name.lower() not in self.tables:
                self.tables[name.lower()] = _table(name, root, sql)

    @property
    def _slow(self) -> bool:
        return self._encoding not in (0, 1) or self._log

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with these columns."""
        found = self.tables.get(table.lower())
        return found is not None and all(column.lower() in found.places for column in columns)

    def batches(self, table: str, wanted: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """The rows of a table in batches; a table that is missing has none.

        `wanted` are columns with their types; those that are missing are NULL.
        """
        found = self.tables.get(table.lower())
        if found is None:
            return
        if self._slow or found.without_rowid:
            yield from self._slow_batches(found, wanted)
            return
        there = {name: kind for name, kind in wanted.items() if name.lower() in found.places}
        places = [
            (found.places[name.lower()], kind, name.lower() == found.rowid) for name, kind in there.items()
        ]
        scan = _native.SqliteScan(self._file.fileno(), found.root, places)
        for batch in _batches(scan, list(there), list(there.values())):
            yield _completed(batch, wanted)
        self._count(found.name, scan.lost)

    def rows(self, table: str, wanted: Mapping[str, str], most: int = 100_000) -> list[dict[str, Any]]:
        """The first rows of a small table."""
        kept: list[dict[str, Any]] = []
        for batch in self.batches(table, wanted):
            kept += batch.slice(0, most - len(kept)).to_pylist()
            if len(kept) >= most:
                break
        self._lost.pop((table, "cut_texts"), None)  # nobody needs a fact of so many letters whole
        return kept

    def _slow_batches(self, table: SqliteTable, wanted: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        there = {name: kind for name, kind in wanted.items() if name.lower() in table.places}
        columns = ", ".join(_typed(name, kind) for name, kind in there.items())
        schema = pa.schema([(name, _arrow(kind)) for name, kind in there.items()])
        try:
            with self._connected() as opened:
                rows = opened.execute(f"SELECT {columns or 'NULL'} FROM {_quoted(table.name)}")
                while read := rows.fetchmany(_SLOW_ROWS):
                    values = list(zip(*read, strict=True))[: len(there)]
                    arrays = [
                        pa.array(column, field.type) for column, field in zip(values, schema, strict=True)
                    ]
                    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                    yield _completed(batch, wanted, len(read))
        except (sqlite3.Error, pa.ArrowInvalid) as error:
            self._lost[(f"the rest of {table.name}", str(error)[:200])] = 1

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        where = self._path.absolute().as_uri()
        opened = sqlite3.connect(where + ("?mode=ro" if self._log else "?mode=ro&immutable=1"), uri=True)
        opened.text_factory = lambda raw: raw.decode("utf-8", "replace")[: 1 << 16]
        try:
            opened.execute("PRAGMA trusted_schema = OFF")
            opened.execute("PRAGMA query_only = ON")
            yield opened
        finally:
            opened.close()

    def _count(self, table: str, lost: dict[str, int]) -> None:
        for kind, count in lost.items():
            if count:
                self._lost[(table, kind)] = self._lost.get((table, kind), 0) + count

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What could not be read of the tables that were asked for."""
        words = {
            "pages": "a page of {} that is damaged or beyond the end of the file",
            "rows": "a row of {} that is damaged",
            "odd_values": "a value in {} that is not of its column's type, taken as missing",
            "cut_texts": "a text in {} that is too long, cut",
        }
        return tuple(
            Damage(words.get(kind, f"{{}} could not be read: {kind}").format(table), count)
            for (table, kind), count in self._lost.items()
        )

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SCHEMA = [(0, "string", False), (1, "string", False), (3, "int64", False), (4, "string", False)]


def _log_of(path: Path) -> bool:
    """Whether changes lie beside the file, in a write-ahead log."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size > 0
    except OSError:
        return False


def _typed(name: str, kind: str) -> str:
    """A column as it is asked for: SQLite holds any type in any column."""
    column = _quoted(name)
    if kind == "string":
        return f"CAST({column} AS TEXT)"
    fits = "'integer'" if kind == "int64" else "'integer', 'real'"
    return f"CASE WHEN typeof({column}) IN ({fits}) THEN {column} END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _arrow(kind: str) -> pa.DataType:
    import pyarrow as pa

    return {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}[kind]


def _batches(scan: _native.SqliteScan, names: list[str], kinds: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    types = [_arrow(kind) for kind in kinds]
    for rows, columns in _ahead(scan):
        arrays = [
            pa.Array.from_buffers(kind, rows, [None if one is None else pa.py_buffer(one) for one in buffers])
            for kind, buffers in zip(types, columns, strict=True)
        ]
        if names:
            yield pa.RecordBatch.from_arrays(arrays, names)
        else:  # rows of which no column is there still count
            yield pa.RecordBatch.from_arrays([pa.nulls(rows)], [""])


def _ahead(scan: _native.SqliteScan) -> Iterator[tuple[int, list[tuple[memoryview | None, ...]]]]:
    """What is read, the next batch beside the work on the one before; a small table takes no thread."""
    read = scan.next(ROWS)
    if read[0] < ROWS:
        if read[0]:
            yield read
        return
    with ThreadPoolExecutor(1, "stepscope-sqlite") as aside:
        while read[0]:
            coming = aside.submit(scan.next, ROWS)
            yield read
            read = coming.result()


def _completed(batch: pa.RecordBatch, wanted: Mapping[str, str], rows: int | None = None) -> pa.RecordBatch:
    import pyarrow as pa

    count = batch.num_rows if rows is None else rows
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = [there.get(name, nulls(count, _arrow(kind))) for name, kind in wanted.items()]
    return pa.RecordBatch.from_arrays(arrays, list(wanted))


def _table(name: str, root: int, sql: str) -> SqliteTable:
    """What a `CREATE TABLE` says of the columns, as far as it can be understood."""
    tokens = [one for one in _TOKEN.findall(sql[: 1 << 20]) if not one.startswith(("--", "/*"))]
    items, after = _items(tokens)
    places: dict[str, int] = {}
    whole: list[str] = []
    rowid = None
    for item in items:
        upper = [token.upper() for token in item]
        if upper[0] in _CONSTRAINTS:
            if upper[:3] == ["PRIMARY", "KEY", "("] and upper[4:5] == [")"]:
                rowid = _plain(item[3]) if _plain(item[3]) in whole else rowid
            continue
        column = _plain(item[0])
        kind = upper[1 : _end_of_type(upper)]
        if "AS" in upper and "STORED" not in upper and ("GENERATED" in upper or "(" in upper):
            continue  # computed when it is asked for, and not in the row
        if column not in places:
            places[column] = len(places)
        if kind == ["INTEGER"]:
            whole.append(column)
            at = upper.index("KEY") if "PRIMARY" in upper and "KEY" in upper else None
            if at is not None and upper[at + 1 : at + 2] != ["DESC"]:
                rowid = column
        if len(places) >= _MOST_COLUMNS:
            break
    without = "WITHOUT" in [token.upper() for token in after]
    return SqliteTable(name, root, places, None if without else rowid, without)


def _items(tokens: list[str]) -> tuple[list[list[str]], list[str]]:
    """The parts between the commas of the outer parentheses, and what follows these."""
    items: list[list[str]] = [[]]
    depth = 0
    for place, piece in enumerate(tokens):
        if piece == "(":
            depth += 1
            if depth == 1:
                continue
        elif piece == ")":
            depth -= 1
            if depth == 0:
                return [item for item in items if item], tokens[place + 1 :]
        if depth == 1 and piece == ",":
            items.append([])
        elif depth:
            items[-1].append(piece)
    return [item for item in items if item], []


def _end_of_type(upper: list[str]) -> int:
    ends = [place for place, token in enumerate(upper) if place and token in _AFTER_TYPE]
    return min(ends, default=len(upper))


def _plain(token: str) -> str:
    """A name without its quotes, in small letters."""
    if len(token) > 1 and token[0] in "\"`'":
        token = token[1:-1].replace(token[0] * 2, token[0])
    elif token.startswith("["):
        token = token[1:-1]
    return token.lower()
