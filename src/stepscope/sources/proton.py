"""Profiles of Proton, Triton's profiler: a tree of scopes and kernels in hatchet's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._reading import why_no_json

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["proton"]

_HEAD = re.compile(rb'^\[\s*\{\s*"(children|frame|metrics)"\s*:')
_LARGEST = 256 << 20
"""It is a sum over a run, so it does not grow with its length."""
_NOTE = (
    "A profile of Proton has no timeline: it says how long kernels took, not when, and nothing of the time "
    "between them."
)
_RECORD = "record one with proton.start('name', hook='triton') and proton.finalize()"
_TIME = re.compile(r"^time \((ns|us|ms|s)\)(?: \(exc\))?$")
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_MOST = 1 << 62


def _is_proton(given: Input) -> bool:
    head = given.head
    return bool(_HEAD.match(head)) and b'"frame"' in head and b'"traceEvents"' not in head


@source(sniff=_is_proton, beside=True)
def proton(given: Input, writer: StoreWriter) -> SourceMeta:
    """Adds a profile of Proton: time, calls, bytes and operations of scopes and kernels."""
    import pyarrow as pa

    document = _document(given)
    trees = [one for one in document if isinstance(one, dict) and "frame" in one]
    devices = [one for one in document if isinstance(one, dict) and "frame" not in one]
    rows = list(_rows(trees))
    whole = [row for row in rows if row["name"]]
    if not whole:
        raise StepscopeError(f"{given.name} is a profile of Proton without a scope", hint=_RECORD)
    kinds = dict.fromkeys(("scope", "parent", "depth", "calls", "time_ns"), pa.int64())
    kinds |= {"bytes": pa.float64(), "flops": pa.float64()}
    columns = {key: pa.array([row[key] for row in whole], kinds.get(key, pa.string())) for key in whole[0]}
    writer.add_rows("proton_scopes", pa.table(columns))
    lost = len(rows) - len(whole)
    return SourceMeta(
        damage=(Damage("a scope of Proton's without a name, not kept", lost),) if lost else (),
        metadata={"proton_devices": devices[0] if devices else {}},
        joined="by kernel name",
        notes=(_NOTE,),
    )


def _document(given: Input) -> list[Any]:
    raw = given.whole(_LARGEST, ": it is no profile of Proton", hint=_RECORD)
    try:
        document = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise StepscopeError(
            f"{given.name} is damaged: {why_no_json(error)}", hint="copy it once more"
        ) from error
    return document if isinstance(document, list) else []


def _rows(trees: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The scopes, each after the one around it."""
    waiting: list[tuple[Any, int | None, int]] = [(tree, None, 0) for tree in reversed(trees)]
    number = 0
    while waiting:
        node, parent, depth = waiting.pop()
        if not isinstance(node, dict):
            continue
        frame, metrics = node.get("frame"), node.get("metrics")
        name = frame.get("name") if isinstance(frame, dict) else None
        yield _row(number, parent, depth, name, metrics if isinstance(metrics, dict) else {})
        inside = node.get("children")
        waiting += [
            (child, number, depth + 1) for child in reversed(inside if isinstance(inside, list) else [])
        ]
        number += 1


def _row(scope: int, parent: int | None, depth: int, name: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    kind, index = metrics.get("device_type"), metrics.get("device_id")
    times = [
        _number(value) * _UNITS[found[1]]
        for key, value in metrics.items()
        if (found := _TIME.match(str(key))) and _number(value) is not None
    ]
    flops = [_number(value) for key, value in metrics.items() if re.fullmatch(r"flops\d*", str(key))]
    known = [one for one in flops if one is not None]
    return {
        "scope": scope,
        "parent": parent,
        "depth": depth,
        "name": name if isinstance(name, str) else None,
        "device": f"{kind} {index}" if isinstance(kind, str) and isinstance(index, str | int) else None,
        "calls": _whole(metrics.get("count")),
        "time_ns": _whole(sum(times)) if times else None,
        "bytes": _number(metrics.get("bytes")),
        "flops": sum(known) if known else None,
        "metrics": json.dumps(metrics, ensure_ascii=False)[:10_000],
    }


def _number(value: Any) -> Any:
    """A figure that can be; else None."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    return value if fits else None


def _whole(value: Any) -> int | None:
    found = _number(value)
    return None if found is None else round(found)
