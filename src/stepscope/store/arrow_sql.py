"""Questions in SQL to Arrow tables in memory: no file of the machine is seen, and nothing is kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.store import connection as fenced

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["ask"]

_opened = threading.local()
"""An empty database of each thread: to open one takes longer than most questions."""


def ask(sql: str, /, params: Mapping[str, Any] | None = None, **tables: pa.Table) -> pa.Table:
    """The answer to a query over tables, each by the name under which it is given."""
    import duckdb

    try:
        with fenced.cursor_of(_database()) as cursor:
            # What is registered is seen by this cursor alone, and is gone with it.
            for name, table in tables.items():
                cursor.register(name, table)
            given = dict(params or {})
            if sum(table.num_rows for table in tables.values()) <= fenced.FEW_ROWS:
                answer = fenced.few(cursor, sql, given)
                if answer is not None:
                    return answer
            whole: pa.Table = fenced.run(cursor, sql, given, None)
            return whole
    except (duckdb.Error, RuntimeError) as error:
        raise fenced.explained(error) from error


def _database() -> duckdb.DuckDBPyConnection:
    known = getattr(_opened, "database", None)
    if known is None or known[0] != os.getpid():  # a forked process must not use its parent's
        database = fenced.unlocked()
        fenced.lock(database)
        known = _opened.database = (os.getpid(), database)
    found: duckdb.DuckDBPyConnection = known[1]
    return found
