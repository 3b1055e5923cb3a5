"""The process that answers SQL of a page: what a query takes, and what it breaks, is this process's alone.

It gets questions from its own window only, through a socket that nobody else has, and answers each with JSON.
The window ends it where a query takes too long or is not wanted any more; if the window is gone, it ends too.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from stepscope import interrupts, memory
from stepscope.children import channel_of
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.measured import MeasuredStep
    from stepscope.store.trace import Trace

__all__ = ["Question", "serve"]

_MEMORY = 2 << 30
"""What a query may take beyond what the process has."""
_LONGEST = 2_000
"""Characters of a value; more are cut."""
_MOST_BYTES = 24 << 20
_BATCH = 2_048


@dataclass(frozen=True, slots=True)
class Question:
    """A query, about which store, and how much of its answer is wanted."""

    folder: str
    measured: MeasuredStep | None
    sql: str
    most_rows: int
    seconds: float


def serve() -> NoReturn:
    """Answers until there is no window."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the window decides
    channel = channel_of()
    questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, questions), daemon=True).start()
    threading.Thread(target=_prepare, daemon=True).start()
    traces: dict[str, Trace] = {}
    try:
        while True:
            found = _answer(questions.get(), traces)
            channel.send_bytes(json.dumps(found, allow_nan=False).encode())
    except OSError:
        os._exit(0)


def _listen(channel: Connection, questions: queue.SimpleQueue[Question]) -> None:
    """Takes questions; without a window there is nothing to go on with, not even with a query."""
    try:
        while True:
            questions.put(channel.recv())
    except (EOFError, OSError):
        os._exit(0)


def _prepare() -> None:
    """Loads what the first query needs, before it is asked."""
    import pyarrow.dataset  # noqa: F401 - as said

    import stepscope.opening  # noqa: F401
    from stepscope.store.arrow_sql import ask

    ask("SELECT 1 AS ready")


def _answer(question: Question, traces: dict[str, Trace]) -> dict[str, Any]:
    from stepscope.opening import open_trace

    try:
        if question.folder not in traces:
            opened = open_trace(question.folder)
            opened.measured = question.measured
            traces[question.folder] = opened
        trace = traces[question.folder]
        trace.time_limit_s = question.seconds
        with memory.data_limited(_MEMORY):
            return _rows(trace, question)
    except StepscopeError as error:
        return {"problem": error.message, "hint": error.hint or ""}
    except Exception as error:  # noqa: BLE001 - told in the page; the next query may be well
        interrupts.pass_on()
        if memory.is_lack_of_memory(error):
            return {"problem": "the query needs more memory than it may take", "hint": "ask for fewer rows"}
        return {"problem": f"{type(error).__name__}: {error}"[:500], "hint": ""}


def _rows(trace: Trace, question: Question) -> dict[str, Any]:
    """The first rows of an answer, column by column."""
    began = time.monotonic()
    names: list[str] = []
    kinds: list[str] = []
    values: list[list[Any]] = []
    rows = size = 0
    more = False
    for batch in trace.batches(question.sql, rows=_BATCH):
        if not names:
            names, kinds = batch.schema.names, [_kind(field.type) for field in batch.schema]
            values = [[] for _ in names]
        left = question.most_rows - rows
        if left <= 0 or size > _MOST_BYTES:
            more = batch.num_rows > 0 or more
            break
        taken = batch.slice(0, left)
        more = taken.num_rows < batch.num_rows
        for place, column in enumerate(taken.columns):
            cells = [_cell(value) for value in column.to_pylist()]
            size += sum(len(cell) if isinstance(cell, str) else 8 for cell in cells)
            values[place] += cells
        rows += taken.num_rows
        if more:
            break
    columns = [{"name": name, "type": kind} for name, kind in zip(_distinct(names), kinds, strict=True)]
    took_ns = round((time.monotonic() - began) * 1e9)
    return {"columns": columns, "values": values, "rows": rows, "more": more, "took_ns": took_ns}


def _kind(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) or pa.types.is_decimal(kind) else "str"


def _cell(value: Any) -> Any:
    """A value as JSON has it: exact where that can be, and no longer than a page can show."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # A browser's numbers are exact up to here; more is text, so that no digit is wrong.
        return value if abs(value) <= 1 << 53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    from decimal import Decimal

    if isinstance(value, Decimal):
        return _cell(int(value)) if value == value.to_integral_value() else float(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _distinct(names: list[str]) -> Iterator[str]:
    """The names of columns, a number behind each that was there before: a, a_1."""
    seen: set[str] = set()
    for name in names:
        fresh, number = name, 0
        while fresh in seen:
            number += 1
            fresh = f"{name}_{number}"
        seen.add(fresh)
        yield fresh
