"""Reads bytes with the native reader, and puts every event together again from what was stored of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from stepscope.schema import EVERY_EVENT, STORED
from stepscope.sources.kineto import new_reader
from stepscope.store.columns import chosen, texts

__all__ = ["Event", "Reading", "loads", "nanoseconds", "read"]

Event = dict[str, Any]


def loads(text: str | bytes, *, exact: bool = False) -> Any:
    """JSON as Python reads it; NaN and its like as their names, so that they can be compared."""
    return json.loads(text, parse_constant=str, parse_float=Decimal if exact else None)


def nanoseconds(value: Any) -> int | None:
    """A time in microseconds as whole ns, half to even; None for what is no number or too large."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    if isinstance(value, Decimal):
        if value.adjusted() > 20:
            return None if value else 0
        if value.adjusted() < -20:
            return 0
    ns = round(Fraction(value) * 1000)
    return ns if abs(ns) < 2**63 else None


@dataclass
class Reading:
    """All that the reader says about some bytes."""

    refusal: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    threads: list[tuple[str, str]] = field(default_factory=list)
    damage: dict[str, tuple[int, int, list[int]]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    skeletons: list[str] = field(default_factory=list)
    shape_tables: list[int] = field(default_factory=list)
    shape_events: list[int] = field(default_factory=list)
    shape_total: list[int] = field(default_factory=list)
    phases: list[str | None] = field(default_factory=list)
    categories: list[str | None] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    events_read: int = 0
    bytes_read: int = 0
    known_hits: int = 0
    template_hits: int = 0
    template_mismatches: int = 0

    def events(self) -> list[Event]:
        """The events in file order, from columns, skeletons, names and threads alone."""
        parsed = [loads(skeleton) for skeleton in self.skeletons]
        scalars = [tuple(loads(text) if text else None for text in pair) for pair in self.threads]
        return [self._event(row, parsed[row["skeleton"]], scalars[row["thread"]]) for row in self.rows]

    def _event(self, row: dict[str, Any], skeleton: Event, thread: tuple[Any, ...]) -> Event:
        event = dict(skeleton)
        start, dur = row["start_ns"], row["dur_ns"]
        top = {
            "name": None if row["name"] is None else self.names[row["name"]],
            "pid": thread[0],
            "tid": thread[1],
            "ts": None if start is None else float(Decimal(start) / 1000),
            "dur": None if dur is None else float(Decimal(dur) / 1000),
        }
        fill(event, top)
        columns = STORED[row["table"]].columns
        fill(event, {column.key: row[column.name] for column in columns if column.top})
        if isinstance(event.get("args"), dict):
            event["args"] = dict(event["args"])
            fill(event["args"], {column.key: row[column.name] for column in columns if not column.top})
        return event

    def without_templates(self) -> dict[str, Any]:
        """Everything that the fast path must not change."""
        return {key: value for key, value in vars(self).items() if not key.startswith(("template", "known"))}


def fill(event: Event, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if key in event and event[key] is None and value is not None:
            event[key] = value


def pieces(raw: bytes, size: int | None) -> Iterator[bytes]:
    size = size or max(len(raw), 1)
    for at in range(0, len(raw), size):
        yield raw[at : at + size]


def read(raw: bytes, piece: int | None = None, *, cut: Any = False, **options: int) -> Reading:
    """Feeds the bytes piece by piece, drains what is full, and collects it all."""
    reader = new_reader(**options)
    reading = Reading()
    for part in pieces(raw, piece):
        reader.feed(part)
        add_batches(reading, reader.take_batches())
        if reader.dictionary_full:
            add_dictionary(reading, reader.take_dictionary(last=False))
    reader.finish(cut)
    add_batches(reading, reader.take_batches())
    add_dictionary(reading, reader.take_dictionary(last=True))
    reading.rows.sort(key=lambda row: int(row["event"]))
    reading.refusal = reader.refusal
    reading.metadata = {key: loads(text) for key, text in reader.metadata}
    reading.threads = reader.threads
    reading.damage = {reason: (count, lost, places) for reason, count, lost, places in reader.damage}
    reading.events_read, reading.bytes_read = reader.events, reader.bytes
    reading.known_hits = reader.known_hits
    reading.template_hits = reader.template_hits
    reading.template_mismatches = reader.template_mismatches
    check(reading, len(raw))
    return reading


def add_batches(reading: Reading, batches: list[Any]) -> None:
    for batch in batches:
        table = STORED[batch.table]
        names = [column.name for column in (*EVERY_EVENT, *table.columns)]
        doubles = {column.name for column in table.columns if column.type == "double"}
        columns, _ = batch.take()
        lists = [
            plain_list(*column, as_double=name in doubles)
            for name, column in zip(names, columns, strict=True)
        ]
        reading.rows += [
            {"table": batch.table, **dict(zip(names, row, strict=True))} for row in zip(*lists, strict=True)
        ]


def plain_list(values: memoryview, validity: memoryview | None, *, as_double: bool) -> list[Any]:
    cells = (values.cast("B").cast("d") if as_double else values).tolist()
    if validity is None:
        return cells
    bits = validity.tolist()
    return [cell if bits[at >> 3] >> (at & 7) & 1 else None for at, cell in enumerate(cells)]


def add_dictionary(reading: Reading, drained: dict[str, Any]) -> None:
    names, skeletons = texts(*drained["names"]).to_pylist(), texts(*drained["skeletons"]).to_pylist()
    assert drained["first_name"] == len(reading.names)
    assert drained["first_skeleton"] == len(reading.skeletons)
    reading.names += names
    reading.skeletons += skeletons
    reading.phases += chosen(drained["small"], drained["phases"]).to_pylist()
    reading.categories += chosen(drained["small"], drained["categories"]).to_pylist()
    reading.shape_tables += drained["tables"].tolist()
    reading.shape_events += drained["events"].tolist()
    reading.shape_total += drained["total"].tolist()


def check(reading: Reading, size: int) -> None:
    """What must hold for any bytes whatever."""
    assert reading.bytes_read == size
    assert [row["event"] for row in reading.rows] == list(range(reading.events_read))
    assert sum(reading.shape_events) == reading.events_read
    assert all(row["table"] == reading.shape_tables[row["skeleton"]] for row in reading.rows)
    assert all(0 <= at <= size for _, _, places in reading.damage.values() for at in places)
    assert sum(lost for _, lost, _ in reading.damage.values()) <= size
    assert all(count >= len(places) for count, _, places in reading.damage.values())
    assert all(places or "impossible time" in reason for reason, (_, _, places) in reading.damage.items())
