"""The packets of a Perfetto trace that describe others: few, and therefore put together here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope import _native

__all__ = ["clocks", "counters", "gpus", "message", "packet", "process", "thread", "track"]

Field = tuple[int, int | str | bytes]

_BOOTTIME, _REALTIME = 6, 1
_EVENTS, _COUNTERS = 1, 2
"""Sequences of packets: numbers for texts mean something inside one of them."""


def _varint(number: int) -> Iterator[int]:
    number &= (1 << 64) - 1
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number


def message(*fields: Field) -> bytes:
    """A protobuf message, by the numbers of its fields."""
    out = bytearray()
    for number, value in fields:
        if isinstance(value, int):
            out += bytes(_varint(number << 3)) + bytes(_varint(value))
            continue
        raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
        out += bytes(_varint(number << 3 | 2)) + bytes(_varint(len(raw))) + raw
    return bytes(out)


def packet(*fields: Field) -> bytes:
    """A packet, as it stands in a file."""
    return message((1, message(*fields)))


def clocks(base_ns: int) -> bytes:
    """Says that times count from 1970."""
    both = [(1, message((1, clock), (2, base_ns))) for clock in (_BOOTTIME, _REALTIME)]
    return packet((8, base_ns), (10, _EVENTS), (6, message(*both)))


def gpus(names: Iterable[str]) -> bytes:
    """The models of the GPUs, by index."""
    return packet((128, message(*((1, message((1, name))) for name in names))))


def process(uuid: int, pid: int | None, name: str) -> bytes:
    """The track of a process; without a number it is only a name for those inside it."""
    told: Field = (2, name) if pid is None else (3, message((1, pid), (6, name)))
    return packet((60, message((1, uuid), told)))


def thread(uuid: int, parent: int, ids: tuple[int, int], name: str) -> bytes:
    """The track of a thread."""
    told = message((1, ids[0]), (2, ids[1]), (5, name))
    return packet((60, message((1, uuid), (5, parent), (4, told))))


def track(uuid: int, parent: int, name: str) -> bytes:
    """A track of another one."""
    return packet((60, message((1, uuid), (5, parent), (2, name))))


def counters(known: list[tuple[int, str]]) -> bytes:
    """Which counters there are: each device has a descriptor, one more than its index, with all of them."""
    devices = sorted({device for device, _ in known})
    described = []
    for device in devices:
        specs = [
            (1, message((1, number), (2, name))) for number, (of, name) in enumerate(known) if of == device
        ]
        described.append((47, message((1, device + 1), (2, message(*specs)), (3, device))))
    return packet((10, _COUNTERS), (12, message(*described)), (13, 1))


def uuid_of(number: int) -> int:
    """The identity of a numbered track."""
    return _native.PftraceWriter.uuid_of(number)
