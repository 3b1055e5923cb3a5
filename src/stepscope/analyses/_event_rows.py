"""Rows of single events, as a window shows them: what was written of one, and short references to others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stepscope.patterns import late_pattern
from stepscope.schema import COMMUNICATION_KERNEL, COPIES, KERNELS, STORED
from stepscope.store.places import places_of

if TYPE_CHECKING:
    from stepscope.store.places import Place
    from stepscope.store.trace import Trace

__all__ = ["Ref", "arguments", "inputs_of", "kind_of", "ref_of", "reference", "row_at", "rows_at"]

Ref = dict[str, Any]
"""An event in short: event, track, name, kind, start_ns, dur_ns."""

_KINDS = {
    "python_frames": "python_frame",
    "ops": "op",
    "launches": "launch",
    "annotations": "annotation",
    "memory_events": "memory",
}
_COMMUNICATES = late_pattern(COMMUNICATION_KERNEL, re.IGNORECASE)
_LARGEST = 1 << 53
"""Above this a script cannot hold a whole number."""
_DEEPEST = 40
_ROWS = """
    SELECT t.*, n.text AS called, s.category, s.text AS said, (s.text->'$.args')::VARCHAR AS args,
           h.pid, h.tid
    FROM stored.{table} t LEFT JOIN stored.names n ON n.id = t.name
    LEFT JOIN stored.skeletons s ON s.id = t.skeleton LEFT JOIN stored.threads h ON h.id = t.thread
    WHERE {where}
"""


def row_at(trace: Trace, place: Place) -> dict[str, Any]:
    """All that is stored of one event; its table is told as `table`."""
    same = "t.start_ns IS NULL" if place.start_ns is None else "t.start_ns = $start"
    params = {} if place.start_ns is None else {"start": place.start_ns}
    where = f"t.thread = $thread AND {same} AND t.event = $event"
    return rows_at(trace, place.table, where, thread=place.thread, event=place.event, **params)[0]


def rows_at(trace: Trace, table: str, where: str, **params: Any) -> list[dict[str, Any]]:
    """All that is stored of some events of a table, which is called `t` in the condition."""
    found = trace.reading(None).rows(_ROWS.format(table=table, where=where), **params)
    return [{**row, "table": table} for row in found]


def kind_of(row: Mapping[str, Any]) -> str:
    """What an event is on the timeline."""
    if row["table"] != "device_work":
        return _KINDS.get(row["table"], "other")
    if row["category"] in KERNELS:
        return "communication" if _COMMUNICATES.search(row["called"] or "") else "kernel"
    return "copy" if row["category"] in COPIES else "fill"


def reference(row: Mapping[str, Any]) -> Ref:
    """A row of `row_at` in short."""
    return {
        "event": row["event"],
        "track": row["thread"],
        "name": row["called"],
        "kind": kind_of(row),
        "start_ns": row["start_ns"],
        "dur_ns": row["dur_ns"],
    }


def ref_of(trace: Trace, event: int | None, tables: tuple[str, ...]) -> Ref | None:
    """An event in short, by its number; None where there is none."""
    place = places_of(trace).known(event, tables)
    return reference(row_at(trace, place)) if place else None


def arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an event as the profile has them: those of its skeleton, and its columns put back."""
    columns = next(one.columns for one in STORED if one.name == row["table"])
    try:
        said = json.loads(row["said"] or "{}", parse_constant=str)
        args = said.get("args") if isinstance(said, dict) else None
    except (ValueError, RecursionError):
        return {"text": row["said"]}
    found = dict(args) if isinstance(args, dict) else {}
    for column in columns:
        value = row[column.name]
        if column.top or value is None:
            continue
        if found.get(column.key) is None and (column.key in found or column.key):
            found[column.key] = value
    return {str(key): _plain(value) for key, value in found.items()}


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as a script can hold it: large numbers, and what is nested too deeply, as texts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else str(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)  # noqa: PLR0124  # no number
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    return {str(key): _plain(one, depth + 1) for key, one in value.items()}


def inputs_of(args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs of an operator, as far as they were recorded: shape, type, strides and value of each."""
    columns = {
        "shape": args.get("Input Dims"),
        "type": args.get("Input type", args.get("Input Type")),
        "strides": args.get("Input Strides"),
        "value": args.get("Concrete Inputs"),
    }
    lists = {key: value for key, value in columns.items() if isinstance(value, list)}
    count = max((len(value) for value in lists.values()), default=0)
    return [
        {key: _told(lists[key][at]) if at < len(lists.get(key, ())) else None for key in columns}
        for at in range(count)
    ]


def _told(value: Any) -> str | None:
    if isinstance(value, list):
        if not value:
            return None
        flat = all(isinstance(one, int) for one in value)
        return " × ".join(map(str, value)) if flat else json.dumps(value, ensure_ascii=False)
    return None if value in ("", None) else str(value)


def in_short(trace: Trace, table: str, where: str, limit: int, **params: Any) -> list[Ref]:
    """Some events of a table in short, by their start."""
    found = rows_at(trace, table, f"{where} ORDER BY t.start_ns, t.event LIMIT {limit}", **params)
    return [reference(row) for row in found]


def names_of(trace: Trace, numbers: Iterable[int | None]) -> dict[int, str | None]:
    """Names by their numbers."""
    wanted = sorted({one for one in numbers if one is not None})
    if not wanted:
        return {}
    sql = "SELECT id, text FROM stored.names WHERE list_contains($wanted, id)"
    return {row["id"]: row["text"] for row in trace.reading(None).rows(sql, wanted=wanted)}
