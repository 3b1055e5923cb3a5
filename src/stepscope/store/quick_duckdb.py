"""Imports duckdb without parts that few commands use: they take more time than the database itself.

These are its relations, which are queries that are built step by step, and a look for its version.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope import interrupts

__all__ = ["arrow_of", "quick_duckdb"]

_RELATIONS = "duckdb._relation"
_LATE = (_RELATIONS, "duckdb._expression", "duckdb._version")
_ROWS = 1 << 17
"""Rows of a piece of a table."""
_METHODS = ("from_arrow", "sql")
"""What a connection gets from relations, as far as it is in use here."""


class _StandIn(ModuleType):
    """Gives the package every name that it takes from a module."""

    def __getattr__(self, name: str) -> Any:
        if name == "CONNECTION_METHODS":
            return {method: _with_relations(method) for method in _METHODS}
        if name in ("__version__", "__duckdb_version__") or not name.startswith("__"):
            return None
        raise AttributeError(name)


def quick_duckdb() -> None:
    """Imports what is always needed of duckdb, or all of it where it is made of other parts."""
    if "duckdb" in sys.modules:
        return
    sys.modules |= {name: _StandIn(name) for name in _LATE}
    try:
        import duckdb  # noqa: F401
    except Exception:  # noqa: BLE001  # of a version that asks more of a stand-in; it is imported as usual
        interrupts.pass_on()
        for name in [name for name in sys.modules if name.partition(".")[0] == "duckdb"]:
            del sys.modules[name]
    for name in _LATE:
        sys.modules.pop(name, None)


def arrow_of(connection: Any, sql: str, params: dict[str, Any], rows: int | None) -> Any:
    """The answer to a query as an Arrow table, or as a reader of batches of so many rows.

    As relations ask for it in the end: these take long to import, and plan a query once more before.
    """
    values = params or None
    try:
        submit = connection._submit  # noqa: SLF001  # there is no public way without relations
        if rows is None:
            return submit(sql, values, "arrow", _ROWS).arrow_table()
        return submit(sql, values, "stream", rows).arrow_reader()
    except (AttributeError, TypeError):  # of a version that is made of other parts
        relation = connection.sql(sql, params=values)
        return relation.to_arrow_table() if rows is None else relation.to_arrow_reader(rows)


def _with_relations(method: str) -> Callable[..., Any]:
    """A method of connections that has relations imported when it is first called."""

    def call(connection: Any, *given: Any, **named: Any) -> Any:
        relations = importlib.import_module(_RELATIONS)
        for name, real in relations.CONNECTION_METHODS.items():
            setattr(type(connection), name, real)
        return getattr(connection, method)(*given, **named)

    return call
