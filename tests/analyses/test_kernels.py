"""Kernels by name and by launch shape, and the split of time among those that ran at once."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.samples import open_shared
from tests.trying import tries

import stepscope
from stepscope import _native
from stepscope.analyses.devices import devices
from stepscope.analyses.kernels import Kernel, kernels

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def table(drawing: Drawing, folder: Path, **options: Any) -> list[Kernel]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return list(kernels(trace, **options))


def exclusive(drawing: Drawing, folder: Path) -> dict[str | None, int]:
    return {row.name: row.exclusive_ns for row in table(drawing, folder)}


def overlapping() -> Drawing:
    # Three kernels at once, µs: a 0..10, b 4..12, c 8..11.
    # 0..4 a; 4..8 a and b, 2 each; 8..10 all, 666 ns each and 2 ns more for a, which began first; 10..11 b
    # and c, 0.5 each; 11..12 b. In all 12 µs, as long as anything ran.
    drawing = Drawing().kernel("a", 0, 10, stream=7).kernel("b", 4, 8, stream=8)
    return drawing.kernel("c", 8, 3, stream=9)


SHARED = {"a": 4_000 + 2_000 + 666 + 2, "b": 2_000 + 666 + 500 + 1_000, "c": 666 + 500}


def test_what_runs_at_once_shares_the_time(tmp_path: Path) -> None:
    assert exclusive(overlapping(), tmp_path) == SHARED
    assert sum(SHARED.values()) == 12_000


def test_durations_stay_whole(tmp_path: Path) -> None:
    found = {row.name: (row.total_ns, row.share) for row in table(overlapping(), tmp_path)}
    assert found == {"a": (10_000, 10 / 21), "b": (8_000, 8 / 21), "c": (3_000, 3 / 21)}


def test_devices_do_not_share(tmp_path: Path) -> None:
    drawing = overlapping().kernel("d", 0, 12, device=1)
    assert exclusive(drawing, tmp_path) == {**SHARED, "d": 12_000}


def test_copies_take_no_part(tmp_path: Path) -> None:
    drawing = overlapping().memcpy("Memcpy DtoD (Device -> Device)", 0, 12, stream=10)
    assert exclusive(drawing, tmp_path) == SHARED


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_the_file_does_not_matter(seed: int, tmp_path: Path) -> None:
    # Many that start at the same instant, and lengths that leave a remainder.
    drawing = Drawing()
    for number, name in enumerate("abcabd"):
        drawing.kernel(name, 0.001 * (number // 3), 0.007 + 0.002 * number, stream=number)
    found = exclusive(drawing, tmp_path)
    again = exclusive(drawing.shuffled(seed), tmp_path)
    assert again == found
    assert sum(found.values()) == 18


def test_kernels_without_time(tmp_path: Path) -> None:
    (row,) = table(Drawing().kernel("a", 5, 0), tmp_path)
    assert (row.calls, row.total_ns, row.exclusive_ns, row.share) == (1, 0, 0, None)


def shape(grid: int, registers: int = 32) -> dict[str, Any]:
    return {
        "grid": [grid, 1, 1],
        "block": [128, 1, 1],
        "registers per thread": registers,
        "shared memory": 0,
    }


def test_by_shape(tmp_path: Path) -> None:
    drawing = Drawing().kernel("a", 0, 10, args=shape(1)).kernel("a", 10, 20, args=shape(1))
    drawing.kernel("a", 30, 40, args=shape(2)).kernel("a", 70, 1)
    found = [
        (row.grid, row.calls, row.total_ns, row.registers) for row in table(drawing, tmp_path, by="shape")
    ]
    assert found == [("[2,1,1]", 1, 40_000, 32), ("[1,1,1]", 2, 30_000, 32), (None, 1, 1_000, None)]


def test_by_name_a_shape_is_said_if_all_runs_have_it(tmp_path: Path) -> None:
    drawing = Drawing().kernel("a", 0, 10, args=shape(1)).kernel("a", 10, 20, args=shape(2))
    (row,) = table(drawing, tmp_path)
    assert (row.grid, row.block, row.registers, row.shared_bytes) == (None, "[128,1,1]", 32, 0)


def test_a_name_that_serves_two_families(tmp_path: Path) -> None:
    # The same product inside a convolution for 3 µs, and on its own for 5.
    drawing = Drawing().op("aten::cudnn_convolution", 0, 5).launch("cudaLaunchKernel", 1, 1, corr=1)
    drawing.op("aten::mm", 10, 5).launch("cudaLaunchKernel", 11, 1, corr=2)
    drawing.kernel("ampere_sgemm_128x64_nn", 20, 3, corr=1).kernel("ampere_sgemm_128x64_nn", 30, 5, corr=2)
    (row,) = table(drawing, tmp_path)
    assert row.family == "matmul"


def test_an_absent_name_is_no_empty_name(tmp_path: Path) -> None:
    drawing = Drawing().kernel("", 0, 1)
    drawing.kernel("gone", 5, 2)
    del drawing.events[-1]["name"]
    names = {row.name: row.total_ns for row in table(drawing, tmp_path)}
    assert names == {"": 1_000, None: 2_000}


@pytest.mark.parametrize("name", ["two_streams", "nccl", "transformer_accumulation"])
def test_the_parts_are_the_time_in_which_kernels_ran(name: str, tmp_path: Path) -> None:
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    whole = sum(row.kernel_ns for row in devices(trace) if row.window == "span")
    assert sum(row.exclusive_ns for row in kernels(trace)) == whole
    assert sum(row.exclusive_ns for row in kernels(trace, by="shape")) == whole


# ---------------------------------------------------------------- the sweep alone

Piece = tuple[int, int, int]
"""Start, duration, key; a negative key is none."""


def by_instants(pieces: list[Piece], windows: list[tuple[int, int]], keys: int) -> list[list[int]]:
    """Calls, total, exclusive and covered time by key: every stretch without a change on its own."""
    calls, total, alone, covered = ([0] * keys for _ in range(4))
    cuts = sorted({t for s, d, _ in pieces for t in (s, s + d)} | {t for window in windows for t in window})
    for low, high in pairwise(cuts):
        if not any(start <= low and high <= end for start, end in windows):
            continue
        running = [piece for piece in pieces if piece[0] <= low and high <= piece[0] + piece[1]]
        if not running:
            continue
        first = min(running, key=lambda piece: piece[0])
        beside = any(key < 0 for _, _, key in running)
        for piece in running:
            if piece[2] < 0:
                continue
            total[piece[2]] += high - low
            alone[piece[2]] += (high - low) // len(running)
            covered[piece[2]] += (high - low) * beside
        if first[2] >= 0:
            alone[first[2]] += (high - low) % len(running)
    for start, dur, key in pieces:
        inside = any(low <= start < high or start < low < start + dur for low, high in windows)
        if key >= 0:
            calls[key] += inside
    return [calls, total, alone, covered]


@given(
    pieces=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.integers(-1, 2)), max_size=12),
    cuts=st.lists(st.integers(0, 80), max_size=6, unique=True).map(sorted),
    cut=st.integers(0, 12),
)
@settings(max_examples=tries(400))
def test_the_sweep_by_instants(pieces: list[Piece], cuts: list[int], cut: int) -> None:
    # No two starts alike: what began first is then clear.
    ordered = sorted({start: (start, dur, key) for start, dur, key in pieces}.values())
    windows = list(zip(cuts[::2], cuts[1::2], strict=False))
    sweep = _native.ExclusiveSweep([low for low, _ in windows], [high for _, high in windows], 3)
    for batch in (ordered[:cut], ordered[cut:]):
        sweep.push(
            *(memoryview(bytes_of([piece[column] for piece in batch])).cast("q") for column in range(3))
        )
    sweep.finish()
    found = [sweep.calls, sweep.total_ns, sweep.exclusive_ns, sweep.covered_ns]
    assert found == by_instants(ordered, windows, 3)


def test_a_long_kernel_beside_many(tmp_path: Path) -> None:
    # One of 1 ms beside 3,000 short ones, one after the other: it gets half of its time, they the other half.
    # What began first is forgotten only when it ends.
    drawing = Drawing().kernel("long", 0, 3000, stream=8)
    for number in range(3000):
        drawing.kernel("short", number, 1, stream=9)
    random.Random(1).shuffle(drawing.events)
    assert exclusive(drawing, tmp_path) == {"long": 1_500_000, "short": 1_500_000}


def test_windows_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        _native.ExclusiveSweep([1, 2], [3], 1)


def bytes_of(numbers: list[int]) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
