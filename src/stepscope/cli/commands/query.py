"""Answers a SQL query over a trace."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from stepscope.cli.traces import open_with_progress
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["query"]

_SHOWN = 1000


def query(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, or a store"] = None,
    sql: Annotated[str | None, "one SELECT over the views that --schema shows"] = None,
    *,
    format: Annotated[Literal["table", "csv", "json", "parquet"], "how to write the rows"] = "table",
    schema: Annotated[bool, "list the views and their columns instead"] = False,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Answers one SQL query over a trace. It changes nothing and reads no other file.

    stepscope query trace.json.gz "SELECT name, count(*) FROM ops GROUP BY name ORDER BY 2 DESC LIMIT 10"
    """
    if schema:
        print(_schema(), end="")
        return
    if demo and sql is None:
        trace, sql = None, trace
    if sql is None:
        raise StepscopeError("no query given", hint='stepscope query TRACE "SELECT …"', exit_code=2)
    if format == "parquet" and sys.stdout.isatty():
        raise StepscopeError(
            "Parquet is binary and cannot go to a terminal", hint="add > answer.parquet", exit_code=2
        )
    opened = open_with_progress(trace, store=store, demo=demo)
    if format == "parquet":
        import pyarrow.parquet

        answer = opened.arrow(sql)
        answer = answer.rename_columns(_distinct(answer.column_names))
        pyarrow.parquet.write_table(answer, sys.stdout.buffer, compression="zstd")
    else:
        sys.stdout.write(_rendered(opened.arrow(sql), format))


def _schema() -> str:
    from stepscope.store.views import VIEWS

    blocks = []
    for view in VIEWS:
        width = max(len(name) for name, _, _ in view.columns)
        lines = [f"  {name:<{width}}  {description}" for name, _, description in view.columns]
        blocks.append("\n".join([f"{view.name}: {view.description}", *lines]) + "\n")
    blocks.append("analyses.NAME: every analysis is also a table; `stepscope show` lists them.\n")
    return "\n".join(blocks)


def _distinct(names: list[str]) -> list[str]:
    """The names of columns, a number behind each that was there before: a, a_1."""
    found: list[str] = []
    for name in names:
        fresh, number = name, 0
        while fresh in found:
            number += 1
            fresh = f"{name}_{number}"
        found.append(fresh)
    return found


def _rendered(answer: pa.Table, format: str) -> str:
    answer = answer.rename_columns(_distinct(answer.column_names))
    if format == "json":
        records = _finite(answer).to_pylist()
        return json.dumps(records, indent=1, ensure_ascii=False, default=_json_value) + "\n"
    if format == "csv":
        import io

        import pyarrow.csv

        sink = io.BytesIO()
        pyarrow.csv.write_csv(_flat(answer), sink)
        return sink.getvalue().decode()
    return _aligned(answer)


def _json_value(value: Any) -> int | float | str:
    """A number stays one: sums of whole numbers come as decimals."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _finite(answer: pa.Table) -> pa.Table:
    """JSON has no word for what is not a number: it is absent there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(answer.schema):
        if pa.types.is_floating(field.type):
            column = answer.column(place)
            column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, field.type))
            answer = answer.set_column(place, field.name, column)
    return answer


def _flat(answer: pa.Table) -> pa.Table:
    """CSV has values only: lists and structures are JSON text in it."""
    import pyarrow as pa

    for place, field in enumerate(answer.schema):
        if pa.types.is_nested(field.type) or pa.types.is_interval(field.type):
            texts = [
                None if value is None else json.dumps(value, ensure_ascii=False, default=_json_value)
                for value in answer.column(place).to_pylist()
            ]
            answer = answer.set_column(place, field.name, pa.array(texts, pa.string()))
    return answer


def _aligned(answer: pa.Table) -> str:
    """Columns side by side as they are: a query means what it says, so nothing is rounded."""
    shown = answer.slice(0, _SHOWN)
    rows = [
        ["NULL" if value is None else _plain(value) for value in row.values()] for row in shown.to_pylist()
    ]
    widths = [max(map(len, column)) for column in zip(answer.column_names, *rows, strict=True)]
    numeric = [_is_number(field.type) for field in answer.schema]

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip() + "\n"

    text = line(answer.column_names) + line(["─" * width for width in widths]) + "".join(map(line, rows))
    if answer.num_rows > _SHOWN:
        text += f"… {answer.num_rows - _SHOWN:,} more rows: --format csv shows them all\n"
    return text


def _plain(value: Any) -> str:
    return str(value).replace("\n", "\\n").replace("\x1b", "\\x1b")


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
