"""Writes protobuf by field number, and Perfetto traces with it: slow and plain, to check others with."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Packets", "Real", "fields_of", "message", "of_text", "packed_varint"]

BASE = 1_790_857_026_000_000_000
KERNEL, MEMCPY, MEMSET, ANNOTATION = 1, 2, 3, 4
LANE = 100


@dataclass(frozen=True)
class Real:
    """A number to be written as a double."""

    value: float


@dataclass(frozen=True)
class Fixed:
    """A number to be written in eight bytes."""

    value: int


def packed_varint(number: int) -> bytes:
    """A whole number, negative ones as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(*fields: tuple[int, Any]) -> bytes:
    """Fields by number: whole numbers, texts, messages as bytes, doubles as `Real`."""
    out = b""
    for number, value in fields:
        if isinstance(value, Real):
            out += packed_varint(number << 3 | 1) + struct.pack("<d", value.value)
        elif isinstance(value, Fixed):
            out += packed_varint(number << 3 | 1) + struct.pack("<Q", value.value)
        elif isinstance(value, int):
            out += packed_varint(number << 3) + packed_varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += packed_varint(number << 3 | 2) + packed_varint(len(raw)) + raw
    return out


def fields_of(raw: bytes) -> list[tuple[int, Any]]:
    """The fields of a message, in order."""
    found: list[tuple[int, Any]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            found.append((key >> 3, varint()))
            continue
        size = varint() if size is None else size
        found.append((key >> 3, raw[at : at + size]))
        at += size
    return found


def annotation(value: Any, *name: tuple[int, Any]) -> bytes:
    """A debug annotation, nested as the value is."""
    if isinstance(value, dict):
        return message(*name, *((11, annotation(inner, (10, key))) for key, inner in value.items()))
    if isinstance(value, list):
        return message(*name, *((12, annotation(inner)) for inner in value))
    if isinstance(value, bool):
        return message(*name, (2, int(value)))
    if isinstance(value, float):
        return message(*name, (5, Real(value)))
    if isinstance(value, int):
        return message(*name, (4, value))
    return message(*name, (6, "null" if value is None else value))


@dataclass
class Packets:
    """A Perfetto trace as PyTorch lays it out, drawn packet by packet; times are ns after `BASE`."""

    packets: list[bytes] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, str] = field(default_factory=lambda: {7: "[000007] stream 7"})
    clock: bool = True

    def add(self, *fields: tuple[int, Any]) -> Packets:
        """Any packet."""
        self.packets.append(message(*fields))
        return self

    def track(self, uuid: int, *fields: tuple[int, Any]) -> Packets:
        """A track descriptor."""
        return self.add((60, message((1, uuid), *fields)))

    def thread(
        self, uuid: int, pid: int, tid: int, process: str = "python3", name: str = "thread"
    ) -> Packets:
        """A process and one of its threads."""
        self.track(uuid + 1000, (3, message((1, pid), (6, process))))
        return self.track(uuid, (5, uuid + 1000), (4, message((1, pid), (2, tid), (5, name))))

    def event(self, kind: int, at: int, track: int, *fields: tuple[int, Any], flags: int = 2) -> Packets:
        """A track event."""
        return self.add((8, BASE + at), (10, 1), (11, message((9, kind), (11, track), *fields)), (13, flags))

    def begin(
        self, name: str, at: int, track: int = 1, category: str = "", args: Any = None, ids: Any = ()
    ) -> Packets:
        """The begin of a slice."""
        told: list[tuple[int, Any]] = [(10, self.names.setdefault(name, len(self.names) + 1))]
        if category:
            told.append((3, self.categories.setdefault(category, len(self.categories) + 1)))
        told += [(4, annotation(value, (10, key))) for key, value in (args or {}).items()]
        if ids:
            told.append((3000, message(*((1, one) for one in ids))))
        return self.event(1, at, track, *told)

    def end(self, at: int, track: int = 1) -> Packets:
        """The end of a slice."""
        return self.event(2, at, track, flags=0)

    def group(self, *slices: dict[str, Any]) -> Packets:
        """Slices as PyTorch writes them: all begins, then all ends."""
        for one in slices:
            self.begin(**{key: value for key, value in one.items() if key != "until"})
        for one in slices:
            self.end(one["until"], one.get("track", 1))
        return self

    def stage(self, event: int, at: int, dur: int, stage: int = KERNEL, **more: Any) -> Packets:
        """Work of a GPU."""
        stream = more.get("stream", 7)
        self.lanes.setdefault(stream, f"[{stream:06}] stream {stream}")
        told: list[tuple[int, Any]] = [(1, event), (2, dur), (11, more.get("device", 0))]
        told += [(13, LANE + stream), (14, stage), (5, 1)]
        if name := more.get("name"):
            told.append((20, self.names.setdefault(name, len(self.names) + 1)))
        if kernel := more.get("kernel"):
            told.append((19, self.kernels.setdefault(kernel, len(self.kernels) + 1)))
            sizes = [
                message(*zip((1, 2, 3), more.get(key, (1, 1, 1)), strict=True)) for key in ("grid", "block")
            ]
            told.append((21, message((1, sizes[0]), (2, sizes[1]), (3, message((1, 1), (4, 40))))))
        told += [(18, one) for one in more.get("waits", ())]
        extra = {"device id": more.get("device", 0), "context id": 1, "stream id": stream} | more.get(
            "extra", {}
        )
        told += [(6, message((1, key), (2, str(value)))) for key, value in extra.items()]
        return self.add((8, BASE + at), (10, 1), (53, message(*told)), (13, 2))

    def interned(self) -> bytes:
        """The packet with all texts."""
        texts: list[tuple[int, Any]] = [(2, message((1, iid), (2, name))) for name, iid in self.names.items()]
        texts += [(1, message((1, iid), (2, name))) for name, iid in self.categories.items()]
        stages = {1: "Kernel", 2: "Memcpy", 3: "Memset", 4: "Annotation", 5: "EventRecord", 6: "HostNode"}
        stages |= {LANE + lane: name for lane, name in self.lanes.items()}
        texts += [(24, message((1, iid), (2, name))) for iid, name in stages.items()]
        texts += [(1000, message((1, iid), (3, name))) for name, iid in self.kernels.items()]
        texts += [(1001, message((1, 1), (2, "registers_per_thread")))]
        return message((10, 1), (12, message(*texts)), (13, 1))

    def raw(self) -> list[bytes]:
        """The packets, the texts before whatever refers to them."""
        both = message((1, message((1, 6), (2, BASE))), (1, message((1, 1), (2, BASE))))
        clock = [message((8, BASE), (10, 1), (6, both))] if self.clock else []
        return [*clock, self.interned(), *self.packets]

    def trace(self) -> bytes:
        """The file."""
        return b"".join(message((1, packet)) for packet in self.raw())


_TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\]|\\.)*"|\[[\w.]+\]|[\w.+-]+|[{}:,])')


def of_text(text: str, numbers: dict[str, Any]) -> bytes:
    """A text proto in binary; `numbers` has for each field its number, and for a message its fields."""
    tokens = iter([found[1] for found in _TOKEN.finditer(text + "\n")])
    return _message_of(tokens, numbers)


def _message_of(tokens: Iterator[str], numbers: dict[str, Any]) -> bytes:
    fields: list[tuple[int, Any]] = []
    for token in tokens:
        if token == "}":
            break
        if token == ",":
            continue
        name = token.strip("[]").rpartition(".")[2]
        number, inside = numbers[name] if isinstance(numbers[name], tuple) else (numbers[name], None)
        word = next(tokens)
        if isinstance(inside, dict) and "" not in inside:
            if word == ":":
                word = next(tokens)
            fields.append((number, _message_of(tokens, inside)))
            continue
        word = next(tokens)
        if word.startswith('"'):
            fields.append((number, word[1:-1].encode().decode("unicode_escape").encode("latin-1")))
        else:
            fields.append((number, int(word) if word.lstrip("-").isdigit() else (inside or {}).get(word, 1)))
    return message(*fields)
