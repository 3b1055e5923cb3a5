"""A table as text: a grid for people, Markdown, or exact values as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from typing import Any, Literal

from stepscope import units
from stepscope.present._cells import cell
from stepscope.present._markdown import escaped
from stepscope.present._printable import Styled, printable
from stepscope.tables import Column, Table

__all__ = ["Format", "render"]

Format = Literal["table", "csv", "json", "markdown"]

_GAP = "  "
_TEXT_MIN = 16
"""Texts are not cut below this many characters; the columns that then do not fit go into a second grid."""
_KEYS_MAX = 2
"""So many leading names and numbers are repeated in a second grid, to tell its rows apart."""
_IDENTIFIERS = frozenset(
    {"correlation", "device", "line", "pid", "process", "rank", "sequence", "step", "stream", "thread", "tid"}
)
_INSTANTS = frozenset({"start_ns", "end_ns", "asked_ns", "arrival_ns", "last_arrival_ns", "since_ns"})
_PROSE = frozenset({"advice", "explanation", "reason"})
"""Columns of sentences, which would not fit beside others."""


def render(
    table: Table[Any],
    name: str,
    format: Format,
    *,
    width: int = 80,
    color: bool = False,
    limit: int | None = None,
) -> str:
    """The rows of a table, or the first `limit` of them, in one of the formats.

    `table` and `markdown` are for people: rounded, with units. `csv` and `json` hold the exact values.
    Only `table` looks at width and colour.
    """
    shown = table.arrow if limit is None else table.arrow.slice(0, limit)
    if format == "json":
        return _json(name, table.columns, shown.to_pylist())
    values = [column.to_pylist() for column in shown.columns]
    if format == "csv":
        return _csv(table.columns, values)
    cells = [
        [_cell(column, value) for value in column_values]
        for column, column_values in zip(table.columns, values, strict=True)
    ]
    notes = list(map(printable, table.notes))
    if shown.num_rows < len(table):
        notes.insert(0, f"{units.count(shown.num_rows)} of {units.count(len(table))} rows")
    if format == "markdown":
        return _markdown(table.columns, cells, notes)
    return Styled(_table(table.columns, cells, notes, width, color))


def _table(columns: list[Column], cells: list[list[str]], notes: list[str], width: int, color: bool) -> str:
    """Grids side by side or one below the other, sentences below their rows, notes at the end."""
    rows = list(zip(*cells, strict=True))
    if not rows:
        return "".join(f"{line}\n" for line in ["no rows", *notes])
    # Columns without any value take room and say nothing.
    empty = [i for i, column in enumerate(cells) if set(column) == {units.ABSENT}]
    if empty:
        notes.append(f"Nothing to show in: {', '.join(columns[i].name for i in empty)}.")
    prose = [i for i, column in enumerate(columns) if column.name in _PROSE and i not in empty]
    below = [_below([(columns[i].name, row[i]) for i in prose], width) for row in rows]
    beside = [i for i in range(len(columns)) if i not in (*prose, *empty)]
    columns, cells = [columns[i] for i in beside], [cells[i] for i in beside]
    panels = _panels(columns, cells, width)
    grids = [
        _grid(
            [columns[i] for i in panel],
            [cells[i] for i in panel],
            width,
            color,
            below * (panel is panels[-1]),
        )
        for panel in panels
    ]
    return "\n".join(grids + ["".join(f"{note}\n" for note in notes)] * bool(notes))


def _below(texts: list[tuple[str, str]], width: int) -> list[str]:
    """Sentences that belong to a row, as lines to stand under it."""
    return [
        line
        for name, text in texts
        if text != units.ABSENT
        for line in textwrap.wrap(
            f"{name}: {text}", max(width, 40), initial_indent="    ", subsequent_indent="      "
        )
    ]


def _json(name: str, columns: list[Column], records: list[dict[str, Any]]) -> str:
    described = [{"name": c.name, "type": c.type, "description": c.description} for c in columns]
    document = {"analysis": name, "columns": described, "rows": records}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _csv(columns: list[Column], values: list[list[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for row in zip(*values, strict=True):
        writer.writerow(map(_csv_value, row))
    return text.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return cell(value) if isinstance(value, str) else value


def _markdown(columns: list[Column], cells: list[list[str]], notes: list[str]) -> str:
    rows = [
        [" ".join(_title(column)) for column in columns],
        ["---" if _is_text(column) else "---:" for column in columns],
        *(map(escaped, row) for row in zip(*cells, strict=True)),
    ]
    grid = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return grid + "".join(f"\n{escaped(note)}\n" for note in notes)


def _grid(
    columns: list[Column], cells: list[list[str]], width: int, color: bool, below: list[list[str]]
) -> str:
    widths = _widths(columns, cells, width)
    titles = [_title(column) for column in columns]
    height = max(map(len, titles))
    # Titles of several words stand on several lines, the last word next to the values.
    head = [[""] * (height - len(words)) + words for words in titles]
    lines = [_line(columns, [words[i] for words in head], widths) for i in range(height)]
    lines.append(_GAP.join("─" * n for n in widths))
    if color:
        lines = [f"\x1b[1m{line}\x1b[0m" for line in lines]
    for number, row in enumerate(zip(*cells, strict=True)):
        lines.append(_line(columns, list(row), widths))
        lines += below[number] if below else []
    return "".join(f"{line}\n" for line in lines)


def _line(columns: list[Column], texts: list[str], widths: list[int]) -> str:
    fitted = []
    for column, text, n in zip(columns, texts, widths, strict=True):
        short = _shorten(text, n)
        padding = " " * (n - _cells(short))
        fitted.append(short + padding if _is_text(column) else padding + short)
    return _GAP.join(fitted).rstrip()


def _panels(columns: list[Column], cells: list[list[str]], width: int) -> list[list[int]]:
    """Which columns stand side by side: all, if they fit, else several grids that begin alike."""
    least = [
        min(n, _TEXT_MIN) if _is_text(column) else n
        for column, n in zip(columns, _natural(columns, cells), strict=True)
    ]
    keys: list[int] = []
    for i, column in enumerate(columns[:_KEYS_MAX]):
        if not (_is_text(column) or column.name in _IDENTIFIERS):
            break
        keys.append(i)
    panels = [list(keys)]
    for i in range(len(keys), len(columns)):
        side_by_side = [*panels[-1], i]
        fits = sum(least[j] + len(_GAP) for j in side_by_side) - len(_GAP) <= width
        if fits or panels[-1] == keys:
            panels[-1] = side_by_side
        else:
            panels.append([*keys, i])
    return panels


def _widths(columns: list[Column], cells: list[list[str]], width: int) -> list[int]:
    """Numbers get what they need; the longest texts give way until the line fits."""
    widths = _natural(columns, cells)
    texts = [i for i, column in enumerate(columns) if _is_text(column)]
    room = width - len(_GAP) * (len(columns) - 1)
    while sum(widths) > room:
        longest = max(texts, key=lambda i: widths[i], default=None)
        if longest is None or widths[longest] <= _TEXT_MIN:
            break
        widths[longest] -= 1
    return widths


def _natural(columns: list[Column], cells: list[list[str]]) -> list[int]:
    return [
        max(_cells(text) for text in [*_title(column), *column_cells])
        for column, column_cells in zip(columns, cells, strict=True)
    ]


def _cell(column: Column, value: Any) -> str:
    """A value as people read it; its unit is in the name of its column."""
    if value is None:
        return units.ABSENT
    if column.type == "str":
        return printable(value)
    if column.type == "bool":
        return "yes" if value else "no"
    if column.name in _INSTANTS:
        return units.clock(value)
    if column.name.endswith("_ns"):
        return units.duration(value)
    if column.name == "bytes" or column.name.endswith("_bytes"):
        return units.size(value)
    if column.name == "share" or column.name.endswith("_share"):
        return units.share(value)
    if column.type == "float":
        return units.number(value)
    if column.name in _IDENTIFIERS or column.name.endswith("_id"):
        return str(value)
    return units.count(value)


def _title(column: Column) -> list[str]:
    """The words over a column: its name without the unit, which every value shows."""
    name = column.name.removesuffix("_ns").removesuffix("_bytes")
    return name.split("_")


def _is_text(column: Column) -> bool:
    return column.type in ("str", "bool")


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes up."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _shorten(text: str, width: int) -> str:
    """The text with its middle left out: kernels differ at both ends of their names."""
    if _cells(text) <= width:
        return text
    tail = (width - 1) // 3
    head = width - 1 - tail
    while head and _cells(text[:head]) > width - 1 - tail:
        head -= 1
    while tail and _cells(text[-tail:]) > (width - 1) // 3:
        tail -= 1
    return f"{text[:head]}…{text[-tail:] if tail else ''}"
