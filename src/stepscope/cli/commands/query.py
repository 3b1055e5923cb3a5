"""Answers a SQL query over a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from stepscope.cli import output
from stepscope.cli.traces import PassOption, RankOption, WantedPass, open_with_progress
from stepscope.errors import StepscopeError
from stepscope.memory import data_limited
from stepscope.present._cells import ODD, cell
from stepscope.present._printable import printable
from stepscope.threads import unless_done_in

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["query"]

_SHOWN = 1000
_GRACE_S = 5.0
_MEMORY = 3 << 30
"""What a query may take beyond what the process has: 600 MB for the database, and what it holds beside."""


def query(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    sql: Annotated[str | None, "one SELECT over the views that --schema shows"] = None,
    *,
    format: Annotated[Literal["table", "csv", "json", "parquet"], "how to write the rows"] = "table",
    schema: Annotated[bool, "list the views and their columns instead"] = False,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    time_limit: Annotated[float, "stop a query that takes longer, in seconds"] = 600.0,
) -> None:
    """Answers one SQL query over a trace. It changes nothing and reads no other file.

    stepscope query trace.json.gz "SELECT name, count(*) FROM ops GROUP BY name ORDER BY 2 DESC LIMIT 10"
    """
    if schema:
        output.put(_schema())
        return
    if demo and sql is None:
        trace, sql = None, trace
    if sql is None:
        raise StepscopeError("no query given", hint='stepscope query TRACE "SELECT …"', exit_code=2)
    if format == "parquet" and output.is_terminal():
        raise StepscopeError(
            "Parquet is binary and cannot go to a terminal", hint="add > answer.parquet", exit_code=2
        )
    from stepscope.runs.needs import needed_by_sql

    wanted = WantedPass(rank, pass_, needed_by_sql(sql))
    opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    opened.time_limit_s = time_limit
    last_s = time_limit + _GRACE_S
    with data_limited(_MEMORY), unless_done_in(last_s, partial(_end, last_s)):
        _write[format](_named(opened.batches(sql)))


def _end(seconds: float) -> NoReturn:
    """Ends the process where a single function of SQL takes so long that the database cannot stop it."""
    text = f"stepscope: the query could not be stopped within {seconds:g} s, so stepscope ended\n"
    os.write(2, text.encode())
    os._exit(1)


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


def _named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Every batch as a table whose columns have distinct names."""
    import pyarrow as pa

    for batch in batches:
        table = pa.Table.from_batches([batch])
        yield table.rename_columns(_distinct(table.column_names))


def _write_json(answer: Iterator[pa.Table]) -> None:
    before = "["
    for part in answer:
        records = _finite(part).to_pylist()
        if records:
            text = json.dumps(records, indent=1, ensure_ascii=False, default=_json_value)
            output.put(before + text[1:-2])
            before = ","
    output.put("[]\n" if before == "[" else "\n]\n")


def _write_csv(answer: Iterator[pa.Table]) -> None:
    import io

    import pyarrow.csv

    header = True
    for part in answer:
        sink = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=header)
        pyarrow.csv.write_csv(_celled(_flat(part)), sink, options)
        output.put(sink.getvalue().decode(errors="backslashreplace"))
        header = False


def _write_parquet(answer: Iterator[pa.Table]) -> None:
    import pyarrow.parquet

    first = next(answer)
    with pyarrow.parquet.ParquetWriter(output.binary(), first.schema, compression="zstd") as writer:
        for part in chain([first], answer):
            writer.write_table(part)


def _write_table(answer: Iterator[pa.Table]) -> None:
    import pyarrow as pa

    shown, more = next(answer), 0
    for part in answer:
        if shown.num_rows < _SHOWN:
            shown = pa.concat_tables([shown, part])
        else:
            more += part.num_rows
    output.put(_aligned(shown.slice(0, _SHOWN)))
    more += max(0, shown.num_rows - _SHOWN)
    if more:
        output.put(f"… {more:,} more rows: --format csv shows them all\n")


_write = {"table": _write_table, "csv": _write_csv, "json": _write_json, "parquet": _write_parquet}


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


def _celled(answer: pa.Table) -> pa.Table:
    """Texts as cells; most are cells already, which Arrow finds out without Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for place, field in enumerate(answer.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            column = answer.column(place)
            if pc.any(pc.match_substring_regex(column, ODD)).as_py():
                cells = [None if text is None else cell(text) for text in column.to_pylist()]
                answer = answer.set_column(place, field.name, pa.array(cells, pa.string()))
    return answer.rename_columns([cell(name) for name in answer.column_names])


def _aligned(answer: pa.Table) -> str:
    """Columns side by side as they are: a query means what it says, so nothing is rounded."""
    rows = [
        ["NULL" if value is None else printable(str(value)) for value in row.values()]
        for row in answer.to_pylist()
    ]
    heads = [printable(name) for name in answer.column_names]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    numeric = [_is_number(field.type) for field in answer.schema]

    def line(cells: list[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip() + "\n"

    return line(heads) + line(["─" * width for width in widths]) + "".join(map(line, rows))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
