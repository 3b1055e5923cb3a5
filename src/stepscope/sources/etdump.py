"""ETDump files: what ExecuTorch recorded on a device, as a flatbuffer."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._reading import begins_a_trace

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["etdump"]

_IDENTIFIER = b"ED00"
_LARGEST = 256 << 20
_MOST_EVENTS = 5_000_000
_FARTHEST = 1 << 62
_RUNTIME = ("Method::", "Program::")
"""How the runtime's own ranges begin; everything else is a call of an operator or a delegate."""
_EXECUTED = "Method::execute"
_NOTE = (
    "An ETDump has ticks of the device's clock, which are taken as ns, and no date. Delegates tell what they "
    "ran inside only if they were built to do so. A step is one execution of a method."
)
_RECORD = "build the runtime with ETDumpGen, and write its buffer to a file"


class _Event(NamedTuple):
    name: str
    run: str
    place: int
    """Which run of the file it is of."""
    instruction: int | None
    delegate: str | None
    start_ns: int
    dur_ns: int


def _is_etdump(given: Input) -> bool:
    first = given.first_bytes
    return _IDENTIFIER in (first[4:8], first[8:12])  # with or without its size in front


@source(sniff=_is_etdump)
def etdump(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads an ETDump: operators and delegates that ExecuTorch ran."""
    begins_a_trace(given, writer, "an ETDump")
    reader = _Dump(given.whole(_LARGEST, ": it is no ETDump", hint=_RECORD))
    found = list(reader.events())
    if not found and not reader.lost:
        raise StepscopeError(f"{given.name} is an ETDump without a profiling event", hint=_RECORD)
    operators = [one for one in found if not one.name.startswith(_RUNTIME)]
    ranges = [one for one in found if one.name.startswith(_RUNTIME)]
    ranges += _marks(ranges)
    for table, rows in (("ops", operators), ("annotations", ranges)):
        if rows:
            writer.add_rows(table, _table(rows))
    damage = (Damage("an event of the ETDump that is damaged, not kept", reader.lost),) if reader.lost else ()
    return SourceMeta(
        damage=damage,
        notes=(_NOTE,),
    )


def _marks(ranges: list[_Event]) -> list[_Event]:
    """A mark of a step around each execution of a method; one inside of another is a part of that."""
    executed = [one for one in ranges if one.name == _EXECUTED and one.dur_ns]
    marks: list[_Event] = []
    end = 0
    for one in sorted(executed, key=lambda one: (one.start_ns, -one.dur_ns)):
        if one.start_ns >= end:
            marks.append(one._replace(name=f"ProfilerStep#{len(marks)}"))
            end = one.start_ns + one.dur_ns
    return marks


def _table(rows: list[_Event]) -> pa.Table:
    import pyarrow as pa

    args = [
        json.dumps(
            {
                key: value
                for key, value in zip(("instruction", "delegate"), (one[3], one[4]), strict=True)
                if value is not None
            }
        )
        for one in rows
    ]
    return pa.table(
        {
            "name": [one.name for one in rows],
            "process": ["ExecuTorch"] * len(rows),
            "thread": [one.run for one in rows],
            "start_ns": pa.array([one.start_ns for one in rows], pa.int64()),
            "dur_ns": pa.array([one.dur_ns for one in rows], pa.int64()),
            "args": args,
        }
    )


class _Dump:
    """The tables of a flatbuffer; every offset is looked at before it is followed."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._start = 4 if raw[8:12] == _IDENTIFIER else 0
        self.lost = 0
        """Events that could not be read."""

    def events(self) -> Iterator[_Event]:
        """All profiling events, run after run."""
        left = _MOST_EVENTS
        try:
            runs = list(self._tables(self._at(self._start), 1))
        except (struct.error, ValueError):
            self.lost += 1
            return
        for place, run in enumerate(runs):
            try:
                name = self._text(run, 0) or f"run {place}"
                inside = list(self._tables(run, 3))
            except (struct.error, ValueError):
                self.lost += 1
                continue
            for event in inside[:left]:
                try:
                    found = self._event(event, name, place)
                except (struct.error, ValueError):
                    self.lost += 1
                    continue
                if found:
                    yield found
            self.lost += max(0, len(inside) - left)
            left = max(0, left - len(inside))

    def _event(self, event: int, run: str, place: int) -> _Event | None:
        at = self._field(event, 0)
        if at is None:
            return None  # an allocation or a debug event
        one = self._at(at)
        start, end = (self._number(one, number, "<Q", 0) for number in (6, 7))
        if not start <= end < _FARTHEST:
            raise ValueError("times that cannot be")
        instruction = self._number(one, 2, "<i", -1)
        number = self._number(one, 3, "<i", -1)
        delegate = self._text(one, 4) or (str(number) if number >= 0 else None)
        called = self._text(one, 0) or delegate or "unnamed"
        return _Event(
            called, run, place, instruction if instruction >= 0 else None, delegate, start, end - start
        )

    def _unpack(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self._raw) - struct.calcsize(kind):
            raise ValueError("an offset leads out of the file")
        (value,) = struct.unpack_from(kind, self._raw, at)
        return int(value)

    def _at(self, at: int) -> int:
        """Where an offset leads."""
        return at + self._unpack("<I", at)

    def _field(self, table: int, number: int) -> int | None:
        """Where a field of a table is; None if it is not there."""
        fields = table - self._unpack("<i", table)
        if 4 + 2 * number >= self._unpack("<H", fields):
            return None
        offset = self._unpack("<H", fields + 4 + 2 * number)
        return table + offset if offset else None

    def _number(self, table: int, number: int, kind: str, default: int) -> int:
        at = self._field(table, number)
        return default if at is None else self._unpack(kind, at)

    def _text(self, table: int, number: int) -> str:
        at = self._field(table, number)
        if at is None:
            return ""
        begin = self._at(at)
        size = self._unpack("<I", begin)
        if size > len(self._raw) - begin - 4:
            raise ValueError("a text leads out of the file")
        return self._raw[begin + 4 : begin + 4 + size].decode("utf-8", "replace")

    def _tables(self, table: int, number: int) -> Iterator[int]:
        """The tables of a field that is a list of such."""
        at = self._field(table, number)
        if at is None:
            return
        begin = self._at(at)
        size = self._unpack("<I", begin)
        if size > (len(self._raw) - begin - 4) // 4:
            raise ValueError("a list leads out of the file")
        for place in range(size):
            yield self._at(begin + 4 + 4 * place)
