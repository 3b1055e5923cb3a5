"""The sweep of a timeline on random events, against the slow way, and files that were changed."""

from __future__ import annotations

import os
import random
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.boxes import Box, apart, boxes_of, merged, whole
from tests.trying import tries

from stepscope import _native
from stepscope.store.columns import view

OP, KERNEL, COMMUNICATION, OTHER = 1, 4, 7, 8
RANGES, NOTHING = 16, 255
FOREVER = 2**63 - 1
FAR = 2**62


@dataclass(frozen=True)
class Event:
    start: int | None
    dur: int | None
    name: int | None = 0

    def key(self, number: int) -> tuple[int, int, int]:
        return (self.start or 0, -(self.dur or 0), number)


@contextmanager
def empty() -> Iterator[tuple[_native.TimelineFile, Any]]:
    with tempfile.TemporaryFile() as file:
        yield _native.TimelineFile(file.fileno(), 1000, 1024), file


def columns(events: list[tuple[int, Event]]) -> list[memoryview]:
    rows = [(number, one.start, one.dur, one.name) for number, one in events]
    return [view(pa.array([row[place] for row in rows], pa.int64())) for place in range(4)]


def sweep(
    file: _native.TimelineFile,
    runs: list[list[Event]],
    *,
    track: int = 3,
    kind: int = OP,
    piece: int = 7,
    threads: int = 0,
) -> None:
    """Gives runs to the sweep in pieces, as the store does; events are numbered through all runs."""
    kinds = _native.TimelineKinds(b"", bytes([0, 1]))
    mergers = _native.LaneMergers(file, 0, threads)
    made = _native.TimelineSweep(mergers, kinds, track)
    waiting, first = {}, 0
    for run in runs:
        numbered = sorted(enumerate(run, first), key=lambda one: one[1].key(one[0]))
        waiting[made.add_run()] = [numbered[at : at + piece] for at in range(0, len(numbered), piece)]
        first += len(run)
    while (hungry := made.advance(FOREVER)) >= 0:
        if waiting[hungry]:
            made.give(hungry, columns(waiting[hungry].pop(0)), kind, None)
        else:
            made.end_run(hungry)
    made.finish()
    mergers.finish()


def level(file: _native.TimelineFile, number: int, track: int = 3) -> list[Box]:
    ((_, _, _, _, first, last),) = [one for one in file.tracks() if one[0] == track]
    return whole(lambda level, index: file.tile(track, level, index), number, (first, last), 1000)


def lanes(events: list[Event], *, nests: bool) -> list[int]:
    """The lane of each event, in the order of the sweep: under what encloses it, where it is free."""
    taken: list[tuple[int, Event]] = []
    for event in events:
        assert event.start is not None
        assert event.dur is not None
        end = event.start + event.dur
        still = [(lane, one) for lane, one in taken if one.start + one.dur > event.start]  # type: ignore[operator]
        around = [lane for lane, one in still if one.start + one.dur >= end]  # type: ignore[operator]
        lane = max(around) + 1 if nests and around else 0
        while lane in [busy for busy, _ in still]:
            lane += 1
        taken.append((lane, event))
    return [lane for lane, _ in taken]


times = st.one_of(
    st.integers(-5000, 300_000),
    st.integers(0, 40).map(lambda one: one * 1000),
    st.integers(1_020_000, 1_030_000),  # where the second tile begins
)
durations = st.one_of(
    st.integers(0, 900), st.integers(0, 5000), st.integers(0, 70_000), st.sampled_from([0, 1000, 4000])
)
events = st.builds(Event, times, durations, st.one_of(st.integers(0, 4), st.none()))
runs = st.lists(st.lists(events, max_size=30), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=tries(60, 1500), deadline=None)
@given(runs, st.booleans(), st.integers(0, 3))
def test_random_events(some: list[list[Event]], work: bool, threads: int) -> None:
    every = [event for run in some for event in run]
    kind = KERNEL if work else OP
    with empty() as (file, _):
        sweep(file, some, kind=kind, threads=threads)
        if not every:
            assert [one[3] for one in file.tracks()] == [0]
            return
        own = level(file, 0)
        order = sorted(range(len(every)), key=lambda number: every[number].key(number))
        placed = lanes([every[number] for number in order], nests=not work)
        expected = []
        for number, lane in zip(order, placed, strict=True):
            one = every[number]
            assert one.start is not None
            assert one.dur is not None
            name = 2**32 - 1 if one.name is None else one.name
            of = COMMUNICATION if work and one.name == 1 else kind
            expected.append(Box(lane, one.start, one.dur, one.dur, number, name, 1, of))
        assert own == sorted(expected)
        assert apart(own)
        in_order = sorted(own, key=lambda box: order.index(box.event))
        for number in range(1, 7):
            assert level(file, number) == merged(in_order, number, 1000)
        again = _native.TimelineFile(_.fileno(), 1000, 1024)
        again.load(file.index())
        assert [level(again, number) for number in (0, 3)] == [level(file, number) for number in (0, 3)]


@settings(max_examples=tries(25, 600), deadline=None)
@given(runs, times, st.sets(st.integers(0, 5), min_size=1), st.booleans())
def test_search(some: list[list[Event]], after: int, names: set[int], back: bool) -> None:
    every = [event for run in some for event in run]
    with empty() as (file, _):
        sweep(file, some)
        wanted = view(pa.array(sorted(names), pa.int64()))
        fitting = sorted((one.start or 0, at) for at, one in enumerate(every) if one.name in names)
        found, here = [], (after, -FAR if back else FAR)
        while (one := file.find(wanted, *here, back)) is not None:
            here = (one[2], one[1])
            found.append(here)
        before = [one for one in fitting if one[0] < after][::-1]
        assert found == (before if back else [one for one in fitting if one[0] > after])


def test_several_threads_make_what_one_makes() -> None:
    chance = random.Random(5)
    run = []
    for start in range(0, 4_000_000, 800):  # calls inside calls, up to eight deep
        room = 800
        while room > 1 and chance.random() < 0.9:
            run.append(Event(start + 800 - room, room - 1, chance.randrange(300)))
            room = chance.randrange(1, room)
    assert len(run) > 15_000
    made = []
    for threads in (0, 1, 3):
        with empty() as (file, _):
            sweep(file, [run], piece=1000, threads=threads)
            made.append([level(file, number) for number in range(9)])
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_tracks_at_a_time(threads: int) -> None:
    """Several tracks share the threads; each is done when all of it is in the file."""
    chance = random.Random(6)
    run_of = {
        track: [
            Event(chance.randrange(10**7), chance.randrange(3000), track) for _ in range(2000 * track + 10)
        ]
        for track in range(4)
    }
    with empty() as (file, _):
        mergers = _native.LaneMergers(file, 0, threads)
        kinds = _native.TimelineKinds(b"", b"")
        sweeps = {track: _native.TimelineSweep(mergers, kinds, track) for track in run_of}
        waiting = {
            track: sorted(enumerate(run), key=lambda one: one[1].key(one[0])) for track, run in run_of.items()
        }
        while waiting:
            for track, rows in list(waiting.items()):
                number = sweeps[track].add_run()
                sweeps[track].give(number, columns(rows[:500]), OP, None)
                sweeps[track].end_run(number)
                del rows[:500]
                assert sweeps[track].advance((rows[0][1].start or 0) if rows else FOREVER) == -1
                if not rows:
                    sweeps.pop(track).finish()
                    del waiting[track]
        mergers.finish()
        assert all(done for _, done, *_ in file.tracks())
        found = {track: [level(file, number, track) for number in range(9)] for track in run_of}
    for track, run in run_of.items():
        with empty() as (file, _):
            sweep(file, [run], track=track, piece=1000)
            assert found[track] == [level(file, number, track) for number in range(9)]


def threads() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


def test_a_sweep_that_is_given_up_ends_its_threads() -> None:
    with empty() as (file, _):
        others = threads()
        mergers = _native.LaneMergers(file, 0, 3)
        made = _native.TimelineSweep(mergers, _native.TimelineKinds(b"", b""), 3)
        made.give(made.add_run(), columns([(at, Event(at, 1)) for at in range(9000)]), OP, None)
        assert made.advance(FOREVER) == 0
        started = threads() - others
        assert started
        del made, mergers
        # A thread that was joined may still be listed for a moment; others of this process come and go.
        until = time.monotonic() + 10
        while started <= threads() and time.monotonic() < until:
            time.sleep(0.01)
        assert not started <= threads()


def test_more_than_a_chunk_and_wide_numbers() -> None:
    far = 2**61
    run = [Event(at * 3000, 2000 + at % 7, at % 5) for at in range(5000)]
    run += [Event(far + at * 10**10, 5, 2**28 + at) for at in range(600)]
    with empty() as (file, _):
        sweep(file, [run], piece=1000)
        width = 1000 * 1024
        near = [
            box
            for index in range(15)
            for box in boxes_of(file.tile(3, 0, index))
            if box.start // width == index
        ]
        assert [box.start for box in near] == [event.start for event in run[:5000]]
        (last,) = boxes_of(file.tile(3, 0, (far + 599 * 10**10) // width))
        assert (last.event, last.name, last.dur) == (5599, 2**28 + 599, 5)
        top = 20
        counts = {
            box.count for index in (0, far // (width << 38)) for box in boxes_of(file.tile(3, top, index))
        }
        assert sum(counts) == len(run)


@pytest.mark.parametrize("width", [1, 3, 1000, 1024, 4095, 4096])
@pytest.mark.parametrize("around", [0, -4096 * 3, 2**40, 2**52, 2**52 + 4096 * 5, 2**53 - 3 * 4096])
def test_the_pixel_of_a_time_is_exact(width: int, around: int) -> None:
    near = around // width * width
    starts = sorted({near + pixel * width + more for pixel in (-2, -1, 0, 1) for more in (0, width - 1)})
    with tempfile.TemporaryFile() as raw:
        file = _native.TimelineFile(raw.fileno(), width, 1024)
        sweep(file, [[Event(start, 0) for start in starts]])
        tiles = sorted({start // (width * 1024) for start in starts})
        boxes = [box for index in tiles for box in boxes_of(file.tile(3, 1, index))]
    wanted = [(near + pixel * width, 2 if width > 1 else 1) for pixel in (-2, -1, 0, 1)]
    assert [(box.start, box.count) for box in boxes] == wanted


def test_pixels_with_many_names_and_with_few() -> None:
    chance = random.Random(1)
    many = [Event(at * 50, chance.randrange(1, 40), chance.randrange(300)) for at in range(4000)]
    few = [
        Event(1_000_000 + at * 64_000 + part * 1000, chance.randrange(1, 40), chance.randrange(2))
        for at in range(200)
        for part in range(at % 5)
    ]
    again = [Event(20_000_000 + one.start, one.dur, one.name) for one in many if one.start is not None]
    with empty() as (file, _):
        sweep(file, [[*many, *few, *again]], piece=1000)
        own = level(file, 0)
        for number in range(1, 10):
            assert level(file, number) == merged(own, number, 1000)


def test_what_has_no_time_is_no_box() -> None:
    with empty() as (file, _):
        sweep(file, [[Event(None, 5), Event(5, None), Event(7, -3), Event(9, 1)]])
        assert [(box.start, box.dur) for box in level(file, 0)] == [(7, 0), (9, 1)]


def test_ranges_of_a_device_lie_below_its_work() -> None:
    with empty() as (file, _):
        kinds = _native.TimelineKinds(bytes([KERNEL, 3 + RANGES, OTHER + 2 * RANGES, NOTHING]), b"")
        mergers = _native.LaneMergers(file, 0)
        made = _native.TimelineSweep(mergers, kinds, 0)
        run = made.add_run()
        rows = [Event(0, 10_000), Event(1000, 500), Event(1200, 500), Event(1300, 9), Event(1400, 9)]
        made.advance(FOREVER)
        made.give(run, columns(list(enumerate(rows))), NOTHING, view(pa.array([1, 0, 0, 2, 3], pa.int64())))
        made.end_run(run)
        assert made.advance(FOREVER) == -1
        made.finish()
        mergers.finish()
        found = {box.event: (box.lane, box.kind) for box in boxes_of(file.tile(0, 0, 0))}
        assert found == {1: (0, KERNEL), 2: (1, KERNEL), 0: (2, 3), 3: (3, OTHER)}


def test_deeper_than_there_are_lanes() -> None:
    deep = 4200
    with empty() as (file, _):
        sweep(file, [[Event(at, 2 * deep - 2 * at) for at in range(deep)]], piece=deep)
        found = boxes_of(file.tile(3, 0, 0))
        assert [box.event for box in sorted(found, key=lambda box: box.event)] == list(range(deep))
        assert {box.lane for box in found} == set(range(4096))
        for number in range(1, 6):
            boxes = boxes_of(file.tile(3, number, 0))
            assert sum(box.count for box in boxes) == deep
            assert all(box.busy <= box.dur for box in boxes)


def test_every_byte_of_the_boxes_counts() -> None:
    with empty() as (file, raw):
        sweep(file, [[Event(at * 10, 5, at % 3) for at in range(50)]])
        index = file.index()
        before = os.pread(raw.fileno(), file.size, 0)
        for at in range(0, len(before), 17):
            os.pwrite(raw.fileno(), bytes([before[at] ^ 4]), at)
            damaged = 0
            for number in range(21):
                try:
                    file.tile(3, number, 0)
                except _native.TimelineDamaged:
                    damaged += 1
            assert damaged
            os.pwrite(raw.fileno(), before[at : at + 1], at)
        os.ftruncate(raw.fileno(), file.size - 1)
        with pytest.raises(_native.TimelineDamaged, match="cut short"):
            [file.tile(3, number, 0) for number in range(21)]
        assert file.index() == index


@pytest.mark.slow
@settings(max_examples=tries(100, 3000), deadline=None)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.booleans())
def test_an_index_that_was_changed(place: int, bytes_: bytes, cut: bool) -> None:
    with empty() as (file, raw):
        sweep(file, [[Event(at * 10, 5, at % 3) for at in range(50)]])
        index = bytearray(file.index())
        at = place % len(index)
        index[at : at + len(bytes_)] = b"" if cut else bytes_
        other = _native.TimelineFile(raw.fileno(), 1000, 1024)
        names = view(pa.array([0, 1], pa.int64()))
        try:
            other.load(bytes(index))
            for track in other.tracks():
                for number in (0, 1, 5, 20):
                    boxes_of(other.tile(track[0], number, 0)) if not cut else other.tile(track[0], number, 0)
            other.find(names, 0, 0, False)
            other.find(names, 10**6, 0, True)
        except (_native.TimelineDamaged, AssertionError):
            pass


def test_an_index_that_wants_more_than_there_is() -> None:
    with empty() as (file, raw):
        sweep(file, [[Event(0, 5)]])
        other = _native.TimelineFile(raw.fileno(), 1000, 1024)
        for index in (
            b"",
            b"12",
            struct.pack("<QQ", 2**60, 1),
            struct.pack("<QQ", 0, 2**63),
            file.index()[:-1],
        ):
            with pytest.raises(_native.TimelineDamaged):
                other.load(index)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_disk_that_is_full(threads: int) -> None:
    with Path("/dev/full").open("rb+", buffering=0) as full:
        file = _native.TimelineFile(full.fileno(), 1000, 1024)
        with pytest.raises(OSError, match="No space left"):
            sweep(file, [[Event(at, 5) for at in range(50_000)]], piece=10_000, threads=threads)
        assert not any(done for _, done, *_ in file.tracks())


def test_no_such_level() -> None:
    with empty() as (file, _), pytest.raises(ValueError, match="no such level"):
        file.tile(0, 21, 0)
    with empty() as (file, _):
        assert boxes_of(file.tile(77, 20, 2**61)) == []
