"""Perfetto traces whose sequences are cleared again and again, as Perfetto's SDK does every few seconds."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from tests.protobuf import BASE, Packets, annotation, message
from tests.sources.test_pftrace_pieces import columns_of, events_of

from stepscope import _native
from stepscope.sources._reading import new_reader

NAMES = ["aten::mm", "aten::relu", "aten::add", "train.py(3): step", "cudaLaunchKernel"]
CATEGORIES = ["cpu_op", "cpu_op", "cpu_op", "python_function", "cuda_runtime"]
KEYS = ["External id", "Input type", "Python id", "correlation"]
TOLD = {"cpu_op": (0, 1), "python_function": (2,), "cuda_runtime": (3, 1)}  # keys of a category


def texts(sequence: int, turned: int = 0, flags: int = 1) -> bytes:
    """A packet with all texts; `turned` is how far their numbers are from those of the first."""
    kinds = (2, NAMES), (1, sorted(set(CATEGORIES))), (3, KEYS)
    interned = [
        (field, message((1, (place + turned) % len(known) + 1), (2, text)))
        for field, known in kinds
        for place, text in enumerate(known)
    ]
    return message((10, sequence), (12, message(*interned)), (13, flags))


def slices(first: int, count: int, sequence: int, turned: int = 0) -> Iterator[bytes]:
    """Slices that follow one another on a track of the sequence's own."""
    ordered = sorted(set(CATEGORIES))
    for i in range(first, first + count):
        which = i % len(NAMES)
        values = (i, "float" * (i % 3), i // 2, 70_000 + i)
        told = [
            (4, annotation(values[key], (1, (key + turned) % len(KEYS) + 1)))
            for key in TOLD[CATEGORIES[which]]
        ]
        kind = (ordered.index(CATEGORIES[which]) + turned) % len(ordered) + 1
        fields = (9, 1), (11, sequence), (10, (which + turned) % len(NAMES) + 1), (3, kind), *told
        yield message((8, BASE + i * 10), (10, sequence), (11, message(*fields)), (13, 2))
        yield message((8, BASE + i * 10 + 5), (10, sequence), (11, message((9, 2), (11, sequence))))


def framed(packets: Iterator[bytes] | list[bytes]) -> bytes:
    return b"".join(message((1, one)) for one in packets)


def beginning(sequences: int) -> bytes:
    threads = Packets()
    for one in range(1, sequences + 1):
        threads.thread(one, 5, one)
    return threads.trace()


class TestCleared:
    @pytest.mark.parametrize("sequences", [1, 3])
    @pytest.mark.parametrize("flags", [1, 2])
    @pytest.mark.parametrize("size", [1 << 20, 1_000])
    def test_the_same_slices_as_without(self, sequences: int, flags: int, size: int) -> None:
        """Each time numbers mean other texts, with (1) and without (2) saying that they are cleared."""
        plain = [texts(one) for one in range(1, sequences + 1)]
        cleared = []
        for block in range(40):
            for one in range(1, sequences + 1):
                plain += slices(block * 30, 30, one)
                cleared += [texts(one, block, flags if block else 1), *slices(block * 30, 30, one, block)]
        found = columns_of(beginning(sequences) + framed(cleared), size)
        assert sum(len(rows) for rows in found.values()) == 1_200 * sequences
        assert found == columns_of(beginning(sequences) + framed(plain), size)

    def test_sequences_that_take_turns(self) -> None:
        """One is cleared while the others go on with what their numbers mean."""
        plain = [texts(one) for one in (1, 2, 3)]
        mixed = plain.copy()
        for block in range(60):
            for one in (1, 2, 3):
                plain += slices(block * 5, 5, one)
                turned = block if one == 2 else 0
                mixed += [*([texts(2, block)] if one == 2 else []), *slices(block * 5, 5, one, turned)]
        assert columns_of(beginning(3) + framed(mixed)) == columns_of(beginning(3) + framed(plain))

    @pytest.mark.slow
    @pytest.mark.parametrize("flags", [1, 2])
    def test_slices_are_still_recognised_after_many(self, flags: int) -> None:
        """Where they are not, reading takes ten times as long."""
        before = []
        for block in range(300):
            turned = block % len(NAMES)
            before += [texts(1, turned, flags), *slices(block * 30, 30, 1, turned)]
        last = framed(slices(300 * 30, 5_000, 1))

        def seconds(before: list[bytes]) -> float:
            packets = _native.PftraceReader(new_reader(), "/tmp", "stepscope", {})
            packets.feed(beginning(1) + framed([texts(1), *before, texts(1, 0, flags)]))
            began = time.process_time()
            packets.feed(last)
            return time.process_time() - began

        assert min(seconds(before) for _ in range(3)) < 3 * min(seconds([]) for _ in range(3))

    def test_texts_that_were_cleared_count_no_more(self) -> None:
        blocks = [(texts(1, block), *slices(block * 5, 5, 1, block)) for block in range(20)]
        raw = beginning(1) + framed([packet for block in blocks for packet in block])
        assert sum(events_of(raw, most_interned=1_000)[0].values()) == 100
        assert events_of(raw, most_interned=1_000)[2] == []
        assert events_of(raw, most_interned=100)[2][0][0] == "texts that are too many to be kept"


class TestNumbers:
    @pytest.mark.parametrize("order", [1, -1])
    @pytest.mark.parametrize("step", [1, 3, 40, 1 << 20])
    def test_any_are_understood(self, step: int, order: int) -> None:
        """Counted up or down, near to one another or far apart."""
        numbers = [1 + i * step for i in range(300)][::order]
        kind = message((1, message((1, 1), (2, "cpu_op"))))
        packets = [message((10, 1), (12, kind), (13, 1))]
        for i, number in enumerate(numbers):
            name = message((2, message((1, number), (2, f"op{i}"))))
            packets.append(message((10, 1), (12, name)))
        for i, number in enumerate(numbers):
            begin = message((9, 1), (11, 1), (10, number), (3, 1))
            packets.append(message((8, BASE + i * 10), (10, 1), (11, begin)))
            packets.append(message((8, BASE + i * 10 + 5), (10, 1), (11, message((9, 2), (11, 1)))))
        (rows,) = columns_of(beginning(1) + framed(packets)).values()
        assert [row[2] for row in rows] == list(range(300))

    @pytest.mark.parametrize("sequences", [1, 100])
    def test_a_large_one_takes_no_room(self, sequences: int) -> None:
        """It would be a gigabyte for a file of 80 kB, or seconds to clear it again and again."""
        far = message(*((field, message((1, 65_535), (2, "x"))) for field in (1, 2, 3, 29)))
        packets = [message((10, 1 + i % sequences), (12, far), (13, 1)) for i in range(2_000)]
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        assert not events_of(framed(packets))[0]
        assert time.process_time() - began < 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
