"""The native reader of Perfetto traces: given in any pieces, damaged and random."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protobuf import BASE, Packets, annotation, message
from tests.sources.pftrace_files import drawn
from tests.trying import tries

from stepscope import _native
from stepscope.sources._reading import new_reader


def events_of(raw: bytes, size: int = 1 << 20, **options: int) -> tuple[Any, ...]:
    """What the native readers make of it, given in pieces: tables, texts, damage."""
    reader = new_reader()
    packets = _native.PftraceReader(reader, "/tmp", "stepscope", options)
    for at in range(0, len(raw), size):
        packets.feed(raw[at : at + size])
    packets.finish(False)
    batches: Counter[tuple[int, ...]] = Counter()
    for batch in reader.take_batches():
        columns, _ = batch.take()
        start, dur = columns[3][0].tolist(), columns[4][0].tolist()
        batches.update((batch.table, *pair) for pair in zip(start, dur, strict=True))
    drained: dict[str, Any] = reader.take_dictionary(last=True)
    texts = [bytes(drained[key][1]) for key in ("names", "skeletons")]
    return (
        batches,
        texts,
        [one[:3] for one in packets.damage],
        reader.damage,
        [*map(bytes, packets.take_readings())],
    )


def columns_of(raw: bytes, size: int = 1 << 20) -> dict[int, list[tuple[int, ...]]]:
    """The rows of each table with all their columns."""
    reader = new_reader()
    packets = _native.PftraceReader(reader, "/tmp", "stepscope", {})
    for at in range(0, len(raw), size):
        packets.feed(raw[at : at + size])
    packets.finish(False)
    taken = [(batch.table, batch.take()[0]) for batch in reader.take_batches()]
    return {
        table: list(zip(*(values.tolist() for values, _ in columns), strict=True)) for table, columns in taken
    }


class TestAnyPieces:
    WHOLE = drawn().trace()

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
    def test_the_size_of_pieces_changes_nothing(self, size: int) -> None:
        assert events_of(self.WHOLE, size) == events_of(self.WHOLE)

    def test_little_memory_changes_nothing(self) -> None:
        trace = Packets().thread(1, 5, 5).thread(2, 5, 6)
        slices = [
            {
                "name": f"op{i % 7}",
                "at": i * 10,
                "until": i * 10 + 9,
                "category": "cpu_op",
                "track": 1 + i % 2,
            }
            for i in range(3000)
        ]
        trace.group(*slices)
        for i in range(3000):
            trace.begin("nested", 40_000 + i * 10, 1, "cpu_op").begin("x", 40_002 + i * 10, 1, "cpu_op")
            trace.end(40_005 + i * 10).end(40_007 + i * 10)
        raw = trace.trace()
        assert events_of(raw, memory_bytes=20_000) == events_of(raw)

    def test_tracks_in_order_are_written_as_they_come(self) -> None:
        trace = Packets().thread(1, 5, 5).thread(2, 5, 6)
        for i in range(2000):
            at, track = i * 10, 1 + i % 2
            trace.begin(f"outer{i % 5}", at, track, "cpu_op", args={"External id": i})
            trace.begin("same", at, track, "cpu_op").begin("inner", at + 2, track, "cuda_runtime")
            trace.end(at + 5, track).end(at + 8, track).end(at + 8, track)
        raw = trace.begin("open", 30_000, 1, "cpu_op").trace()
        sorted_first, streamed = events_of(raw), events_of(raw, streams_after=2_000)
        assert streamed[0] == sorted_first[0]
        assert streamed[2:] == sorted_first[2:]
        assert sum(streamed[0].values()) == 6001

    def test_slices_of_numbers_alone_are_read_alike_on_both_ways(self) -> None:
        """Given byte by byte none of them is read by its layout."""
        keys = ((1, "Python id"), (2, "Python parent id"), (3, "External id"))
        trace = Packets().thread(1, 5, 5).thread(200, 5, 6)
        trace.add((10, 1), (12, message(*((3, message((1, key), (2, name))) for key, name in keys))))
        numbers = (0, 1, 127, 128, 1 << 35, (1 << 56) - 1, 1 << 56, 1 << 62, -1, 3)
        for i in range(400):
            at, track, category = i * 20, 1 + 199 * (i // 7 % 2), ("python_function", "cpu_op")[i // 5 % 2]
            told = [(key, numbers[(i + key) % len(numbers)]) for key, _ in keys[: 3 - i % 2]]
            name = trace.names.setdefault(f"frame{i * i % 171}", len(trace.names) + 1)
            kind = trace.categories.setdefault(category, len(trace.categories) + 1)
            annotations = [(4, annotation(value, (1, key))) for key, value in told]
            trace.event(1, at, track, (10, name), (3, kind), *annotations).end(at + 9, track)
        raw = trace.trace()
        whole = columns_of(raw)
        assert sum(len(rows) for rows in whole.values()) == 400
        assert whole == columns_of(raw, 1)
        damaged = raw[:9_000] + b"\xff" * 9 + raw[9_040:]
        assert columns_of(damaged) == columns_of(damaged, 1)

    @pytest.mark.parametrize("size", [4_097, 5_000, 9_999])
    def test_large_pieces_are_read_where_they_lie(self, size: int) -> None:
        trace = Packets().thread(1, 5, 5)
        for i in range(2000):
            trace.begin(f"op{i % 7}" + "x" * (i % 13), i * 10, 1, "cpu_op").end(i * 10 + 5)
        trace.begin("y" * 20_000, 30_000, 1, "cpu_op").end(30_005)
        raw = trace.trace()
        assert events_of(raw, size) == events_of(raw)
        damaged = raw[:30_000] + b"\xff" * 9 + raw[30_000:]
        assert events_of(damaged, size) == events_of(damaged)

    @pytest.mark.parametrize("count", [3, 5_000])
    def test_ends_in_the_order_of_begins_after_many_slices(self, count: int) -> None:
        trace = Packets().thread(1, 5, 5).thread(2, 5, 6)
        for i in range(500):
            trace.begin("a", i * 10, 1, "cpu_op").end(i * 10 + 5)
        trace.begin("around", 8_000, 1, "cpu_op")
        overlapping = [
            {
                "name": "o",
                "at": 9_000 + i * 10,
                "until": 9_015 + i * 10,
                "category": "cpu_op",
                "track": 1 + i % 2,
            }
            for i in range(count * 2)
        ]
        raw = trace.group(*overlapping).trace()
        found = events_of(raw, streams_after=2_000)
        assert sum(found[0].values()) == 501 + count * 2
        assert sum(n for (_, _, dur), n in found[0].items() if dur == 15) == count * 2
        assert found[0] == events_of(raw)[0]

    @pytest.mark.parametrize("late", ["back", "told", "elsewhere", "none"])
    def test_ends_that_wait_after_many_slices(self, late: str) -> None:
        """Plain ends are kept without a record until one shows that they have to be paired in another way."""
        trace = Packets().thread(1, 5, 5).thread(2, 5, 6)
        for i in range(500):
            trace.begin("a", i * 10, 1, "cpu_op").end(i * 10 + 5)
        for at in range(9_000, 19_000, 100):
            for inner in range(4):
                trace.begin(f"b{inner}", at + inner, 1, "cpu_op", args={"External id": at + inner})
            if late == "elsewhere":
                trace.begin("c", at, 2, "cpu_op")
            ends = [90, 80, 70, 60] if late == "back" else [60, 70, 80, 90]
            for end in ends[:2]:
                trace.end(at + end)
            if late == "elsewhere":
                trace.end(at + 75, 2)
            if late == "told":
                trace.event(2, at + ends[2], 1, (4, annotation("yes", (10, "said"))), flags=0)
            else:
                trace.end(at + ends[2])
            trace.end(at + ends[3])
        raw = trace.trace()
        found = events_of(raw, streams_after=2_000)
        others = 100 if late == "elsewhere" else 0
        assert sum(found[0].values()) == 900 + others
        assert [n for (_, _, dur), n in sorted(found[0].items()) if dur in (57, 68, 79, 90)] == [1] * 400
        assert found[0] == events_of(raw)[0]
        assert not found[2]
        assert (b"said" in found[1][1]) == (late == "told")

    def test_slices_of_one_name_in_many_shapes(self) -> None:
        """More of them than are tried one by one; given byte by byte none is read at once."""
        dice, trace = random.Random(5), Packets().thread(1, 5, 5)
        for i in range(2_000):
            shape = dice.randrange(150)
            args = {
                "External id": i,
                "Input Dims": [[shape, 2], [3]],
                "Sequence number": shape % 7,
                "Ev Idx": i * i,
            }
            trace.begin("aten::mm", i * 20, 1, "cpu_op", args=args).end(i * 20 + 9)
        raw = trace.trace()
        whole = columns_of(raw)
        assert [len(rows) for rows in whole.values()] == [2_000]
        assert whole == columns_of(raw, 1)
        assert events_of(raw) == events_of(raw, 1)

    def test_slices_too_deep_after_many_are_counted(self) -> None:
        trace = Packets().thread(1, 5, 5)
        for i in range(500):
            trace.begin("a", i * 10, 1, "cpu_op").end(i * 10 + 5)
        for i in range(4_100):
            trace.begin("deep", 6_000 + i, 1, "cpu_op")
        for i in range(4_100):
            trace.end(20_000 + i)
        found = events_of(trace.trace(), streams_after=2_000)
        assert sum(found[0].values()) == 500 + 4_096
        assert found[2] == [("slices that are nested over 4,096 deep, left out", 4, 0)]

    def test_a_track_that_goes_back_late_is_said(self) -> None:
        trace = Packets().thread(1, 5, 5)
        for i in range(500):
            trace.begin("a", 1_000 + i * 10, 1, "cpu_op").end(1_005 + i * 10)
        raw = trace.begin("early", 0, 1, "cpu_op").end(10).begin("b", 9_000, 1, "cpu_op").end(9_001).trace()
        found = events_of(raw, streams_after=2_000)
        assert sum(found[0].values()) == 502
        assert [reason for reason, _, _ in found[2] if "went back in time" in reason]
        assert not events_of(raw)[2]

    @settings(max_examples=tries(60), deadline=None)
    @given(st.randoms(use_true_random=False), st.integers(1, 200))
    def test_damage_never_crashes_and_pieces_agree(self, dice: random.Random, size: int) -> None:
        raw = bytearray(self.WHOLE)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(raw))
            kind = dice.randrange(4)
            if kind == 0:
                raw[at] = dice.randrange(256)
            elif kind == 1:
                del raw[at : at + dice.randrange(40)]
            elif kind == 2:
                raw[at:at] = dice.randbytes(dice.randrange(40))
            else:
                del raw[max(at, 40) :]
        found = events_of(bytes(raw), size)
        assert found[:2] == events_of(bytes(raw))[:2]

    @settings(max_examples=tries(100), deadline=None)
    @given(st.binary(max_size=400))
    def test_random_bytes_never_crash(self, raw: bytes) -> None:
        events_of(b"\x0a" + raw, 50)
        events_of(message((1, raw)))
        events_of(message((1, message((8, BASE), (10, 1), (11, raw)))))
        events_of(message((1, message((8, BASE), (10, 1), (12, raw), (53, raw), (52, raw), (60, raw)))))
