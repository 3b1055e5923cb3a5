"""A table as a grid to sort, filter, group and copy: its values as they are, and how to show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.present._pieces import title_of
from stepscope.present._printable import printable
from stepscope.present.grids import _IDENTIFIERS, _INSTANTS, _PROSE
from stepscope.records import dataclass
from stepscope.tables import Column, Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_ROWS", "RowLink", "coded", "grid", "nothing"]

MOST_ROWS = 20_000
"""More rows than this nobody scrolls through; SQL finds what is wanted among them."""
_MOST_SHOWN = 9
_LONGEST_TEXT = 20_000
_EXACT = 1 << 53
"""Scripts count exactly up to here."""
_NAMES = frozenset(
    [
        "name",
        "kernel",
        "op",
        "user_frame",
        "library_frame",
        "function",
        "longest",
        "site",
        "path",
        "place",
        "trace_kernel",
        "outer",
        "part",
        "within",
        "holder_site",
        "kept_site",
        "called_from",
        "module",
        "call",
    ]
)
"""Columns of names that are written shorter where there is little room."""
_SUMMED = frozenset(
    [
        "calls",
        "launches",
        "times",
        "blocks",
        "allocations",
        "frees",
        "kernels",
        "samples",
        "lookups",
        "breaks",
        "gaps",
        "regions",
        "copies",
        "fills",
        "self_samples",
        "device_events",
        "graph_launches",
        "events",
        "recompilations",
        "skips",
    ]
)
_EXTREMES = {"min": "min", **dict.fromkeys(("max", "longest", "largest", "peak"), "max")}
_EXTREMES |= dict.fromkeys(("mean", "first", "last", "usual", "middle", "start", "end", "trace"), "")
"""What becomes of a column in a sum of rows, by the first word of its name; of others, their sum."""


@dataclass(frozen=True, slots=True)
class RowLink:
    """Where a row leads to: the value of one of its columns is added to the address."""

    title: str
    to: str
    """An address that ends where the value begins."""
    column: str


def grid(
    table: Table[Any],
    name: str,
    *,
    sort: str = "",
    bar: str = "",
    columns: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> Markup:
    """The grid of a table.

    `sort` is the column it is sorted by at first, from the highest; `bar` the one that is drawn as bars.
    `columns` are those that are shown at first; all can be switched on. `more` has what few grids need:
    `links`, where rows lead to; `tree`, the column with the depth of rows in a tree; `tall` for a grid that
    is most of its page; `group`, the column it is grouped by at first; `chosen`, the row whose details are
    shown at first; `filter`, the words it is filtered by; `clock`, what points in time are counted from.
    """
    if not len(table):
        return nothing(table.notes)
    given = dict(more or {})
    clock = given.pop("clock", None)
    arrow = table.arrow.slice(0, MOST_ROWS)
    known = [column.name for column in table.columns if arrow[column.name].null_count < arrow.num_rows]
    shown = [name for name in columns if name in known] or _shown_at_first(known)
    described, values = [], []
    for column in table.columns:
        told, found = _encoded(column, arrow.column(column.name), clock)
        told |= {"bar": column.name == bar, "shown": column.name in shown}
        described.append(told)
        values.append(found)
    _tell_apart(described)
    links: Sequence[RowLink] = given.pop("links", ())
    data = {
        "name": name,
        "columns": _in_order(described, shown),
        "values": [values[place] for place in _places(described, shown)],
        "sort": sort,
        "links": [{"title": one.title, "to": one.to, "column": one.column} for one in links],
        "rows": len(table),
        **given,
    }
    return joined([block("grid", data, label=title_of(name)), *_notes(table)])


def coded(text: str) -> Markup:
    """A text in which code stands between backticks."""
    return joined([el("code", piece) if place % 2 else piece for place, piece in enumerate(text.split("`"))])


def nothing(told: Iterable[str]) -> Markup:
    """What stands where a grid would be, if there is nothing to show: why, and what to record."""
    lines = list(told) or ["There is nothing to show."]
    return el("div", *(el("p", coded(line), class_="muted") for line in lines), class_="panel empty")


def _in_order(described: list[dict[str, Any]], shown: Sequence[str]) -> list[dict[str, Any]]:
    """The columns with those that are shown first, in the order in which they were named."""
    return [described[place] for place in _places(described, shown)]


def _places(described: list[dict[str, Any]], shown: Sequence[str]) -> list[int]:
    order = {name: place for place, name in enumerate(shown)}
    return sorted(range(len(described)), key=lambda at: (order.get(described[at]["name"], len(order)), at))


def _tell_apart(described: list[dict[str, Any]]) -> None:
    """Of `step` and `step_ns`, which both would be called step, the second is a time."""
    titles = [one["title"] for one in described]
    for one in described:
        if one["unit"] == "ns" and titles.count(one["title"]) > 1:
            one["title"] += " time"


def _notes(table: Table[Any]) -> list[Markup]:
    notes = list(table.notes)
    if len(table) > MOST_ROWS:
        notes.insert(
            0, f"The first {units.count(MOST_ROWS)} of {units.count(len(table))} rows; SQL finds the others."
        )
    return [el("p", coded(one), class_="note small muted") for one in notes]


def _shown_at_first(known: list[str]) -> list[str]:
    """Of those with a value in them the first that are no sentences: of many, none can be read."""
    return [name for name in known if name not in _PROSE][:_MOST_SHOWN]


def _encoded(
    column: Column, array: pa.ChunkedArray, clock: tuple[int, int] | None
) -> tuple[dict[str, Any], list[Any]]:
    """How a column is described to the script, and its values: of texts, their places among distinct ones."""
    unit = _unit(column)
    told: dict[str, Any] = {
        "name": column.name,
        "title": title_of(column.name),
        "type": column.type,
        "unit": unit,
        "description": column.description,
        "sum": _sum(column, unit),
        "named": column.name in _NAMES,
    }
    if column.type == "str":
        encoded = array.combine_chunks().dictionary_encode()
        told["texts"] = [printable(text[:_LONGEST_TEXT]) for text in encoded.dictionary.to_pylist()]
        return told, encoded.indices.to_pylist()
    values = array.to_pylist()
    known = [value for value in values if value is not None]
    if unit == "instant":
        base, first = clock or (min(known, default=0),) * 2
        told |= {"base": str(base), "zero": first - base}
        return told, [None if value is None else value - base for value in values]
    if column.type == "int" and known and max(map(abs, known)) > _EXACT:
        told["exact"] = [None if value is None else str(value) for value in values]
    return told, values


def _unit(column: Column) -> str:
    """How a value is written: a point in time, ns, bytes, a share, a name that is a number, or plain."""
    if column.name in _INSTANTS or (column.type == "int" and "since the epoch" in column.description):
        return "instant"
    for unit in ("ns", "bytes", "share"):
        if column.name == unit or column.name.endswith(f"_{unit}"):
            return unit
    return "id" if column.name in _IDENTIFIERS or column.name.endswith("_id") else ""


def _sum(column: Column, unit: str) -> str:
    """What a group of rows has in a column: the sum, the least, the most, or nothing."""
    if column.type not in ("int", "float") or unit in ("instant", "id"):
        return ""
    if column.name == "mean_ns":
        return "mean"
    first = column.name.partition("_")[0]
    if first in _EXTREMES:
        return _EXTREMES[first]
    return "sum" if unit in ("ns", "bytes", "share") or column.name in _SUMMED else ""
