"""Boxes of a timeline, read from the bytes of its tiles, and the slow way to make them."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

TILE_PIXELS = 1024


@dataclass(frozen=True, order=True)
class Box:
    """One box, as the docstring of `store/timeline.py` describes it."""

    lane: int
    start: int
    dur: int
    busy: int
    event: int
    name: int
    count: int
    kind: int

    @property
    def end(self) -> int:
        return self.start + self.dur


def boxes_of(tile: bytes) -> list[Box]:
    """The boxes of a tile."""
    n, lanes, _, zero = struct.unpack_from("<4I", tile)
    assert zero == 0
    assert len(tile) == 16 + n * (4 * 8 + 2 * 4 + 2 + 1)
    at, columns = 16, []
    for code, size in (*(("d", 8),) * 4, *(("I", 4),) * 2, ("H", 2), ("B", 1)):
        assert at % size == 0
        columns.append(struct.unpack_from(f"<{n}{code}", tile, at))
        at += n * size
    start, dur, busy, event, name, count, lane, kind = columns
    found = [
        Box(*map(int, values))
        for values in zip(lane, start, dur, busy, event, name, count, kind, strict=True)
    ]
    assert [(box.lane, box.start) for box in found] == sorted((box.lane, box.start) for box in found)
    assert all(box.lane < lanes for box in found)
    return found


def whole(tile: Callable[[int, int], bytes], level: int, span: tuple[int, int], pixel: int) -> list[Box]:
    """All boxes of a track at a level: those of its tiles, what reaches into several of them once."""
    width = pixel * 4 ** max(level - 1, 0) * TILE_PIXELS
    seen: list[Box] = []
    for index in range(span[0] // width, span[1] // width + 1):
        found = boxes_of(tile(level, index))
        for box in found:
            assert box.start < (index + 1) * width
            assert box.start >= index * width or box.end > index * width
        here = [box for box in found if box.start >= index * width]
        reaching = [box for box in seen if box.end > index * width]
        assert sorted(box for box in found if box.start < index * width) == sorted(reaching)
        seen += here
    return sorted(seen)


def merged(events: Iterable[Box], level: int, pixel: int) -> list[Box]:
    """What a level has, worked out from the boxes of level 0, each of them by itself."""
    width = pixel * 4 ** (level - 1)
    pixels: defaultdict[tuple[int, int], list[Box]] = defaultdict(list)
    found = []
    for event in sorted(events, key=lambda box: (box.lane, box.start)):
        if event.dur >= width:
            found.append(event)
        else:
            pixels[event.lane, event.start // width].append(event)
    return sorted(found + [_one(some) for some in pixels.values()])


def _one(events: list[Box]) -> Box:
    times: dict[int, int] = {}
    for event in events:
        times[event.name] = times.get(event.name, 0) + event.dur
    name = max(times, key=lambda one: times[one])  # of equal ones the first
    longest = max(events, key=lambda one: one.dur)
    return Box(
        lane=events[0].lane,
        start=events[0].start,
        dur=max(event.end for event in events) - events[0].start,
        busy=sum(event.dur for event in events),
        event=longest.event,
        name=name,
        count=len(events),
        kind=next(event.kind for event in events if event.name == name),
    )


def apart(events: Iterable[Box]) -> bool:
    """Whether no two boxes of a lane overlap."""
    ends: dict[int, int] = {}
    for event in sorted(events, key=lambda box: (box.lane, box.start, box.end)):
        if event.start < ends.get(event.lane, event.start):
            return False
        ends[event.lane] = event.end
    return True
