"""What is known about columns: the views and analyses that a query may ask, and what a name tells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from stepscope import registry
from stepscope.analyses import row_of
from stepscope.present._pieces import title_of
from stepscope.store.views import VIEWS
from stepscope.tables import columns_of

__all__ = ["described", "schema"]

_UNITS = ("ns", "bytes", "share", "flops")


@cache
def schema() -> list[dict[str, Any]]:
    """All tables that a query can name: what each holds, and its columns with what they mean."""
    views = [
        {
            "name": view.name,
            "description": view.description,
            "columns": [[name, description] for name, _, description in view.columns],
        }
        for view in VIEWS
    ]
    analyses = [
        {
            "name": f"analyses.{name}",
            "description": first_line,
            "columns": [[one.name, one.description] for one in columns_of(row_of(_analysis(name)))],
        }
        for name, first_line in registry.names("analyses")
    ]
    return [*views, *analyses]


def described(columns: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Columns of an answer as a grid wants them: with the unit that the end of the name tells."""
    return [
        {
            "name": one["name"],
            "title": title_of(one["name"]),
            "type": one["type"],
            "unit": _unit(one["name"]) if one["type"] in ("int", "float") else "",
            "description": one["name"],
            "sum": "sum" if one["type"] in ("int", "float") and _unit(one["name"]) in ("ns", "bytes") else "",
            "named": one["name"] == "name",
            "bar": False,
            "shown": True,
        }
        for one in columns
    ]


def _unit(name: str) -> str:
    return next((unit for unit in _UNITS if name == unit or name.endswith(f"_{unit}")), "")


def _analysis(name: str) -> Any:
    return registry.load("analyses", name)
