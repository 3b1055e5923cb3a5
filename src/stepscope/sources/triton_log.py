"""Logs of Triton's compiler, one JSON object on a line, as tritonparse records them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["triton_log"]

_FIRST = re.compile(rb'^\s*\{"event_type"\s*:\s*"')
_LONGEST = 64 << 20
_NOTE = "A log of Triton says which kernels were compiled and where they are called, not how long they run."
_OWN = ("/triton/", "/tritonparse/tritonparse/", "/torch/")


@source(sniff=lambda given: not given.is_folder and bool(_FIRST.match(given.head)), beside=True)
def triton_log(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads a log of Triton's compiler: kernels, and the lines that call them."""
    import pyarrow as pa

    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    odd = 0
    for line in _lines(given):
        try:
            told = json.loads(line)
            row = _row(told) if told.get("event_type") == "compilation" else None
        except (ValueError, RecursionError, AttributeError, TypeError):
            odd += 1
            continue
        if row:
            rows.setdefault(tuple(row.values()), row)
    if not rows:
        raise StepscopeError(
            f"{given.name} has no compilation of a kernel", hint="record it with tritonparse"
        )
    kept = list(rows.values())
    columns = {name: pa.array([row[name] for row in kept]) for name in ("process", "name", "lines", "code")}
    writer.add_rows("logged_kernels", pa.table(columns))
    damage = (Damage("a line of the log that is no JSON, left out", odd),) if odd else ()
    return SourceMeta(damage=damage, notes=(_NOTE,), joined="by name")


def _lines(given: Input) -> Iterator[bytes]:
    rest = b""
    for piece in given.stream:
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line for line in lines if line.strip())
        rest = rest if len(rest) <= _LONGEST else b"{"  # counted as no JSON
    if rest.strip():
        yield rest


def _row(told: dict[str, Any]) -> dict[str, Any] | None:
    """The kernel, and the innermost line outside Triton that led to it."""
    metadata = told["payload"]["metadata"]
    stack = [one for one in told.get("stack") or () if isinstance(one, dict)]
    users = [one for one in stack if not any(part in str(one.get("filename")) for part in _OWN)]
    caller = users[-1] if users else {}
    place = f"{str(caller.get('filename'))[:500]}:{caller.get('line')}" if caller else None
    process = told.get("pid")
    return {
        "process": process if isinstance(process, int) and 0 <= process < 1 << 62 else None,
        "name": str(metadata["name"])[:1000].encode("utf-8", "replace").decode(),
        "lines": place and place.encode("utf-8", "replace").decode(),
        "code": str(caller["loc"])[:500].encode("utf-8", "replace").decode() if caller.get("loc") else None,
    }
