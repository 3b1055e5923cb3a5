"""Gaps of devices: what a plain reading of the definition finds, and nothing else."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.commands import SLOW_ITEM
from tests.drawing import Drawing
from tests.oracle import Oracle, device_of

from stepscope.opening import open_trace

REAL = ["hta_nccl_data.json.gz", "hta_amd_mi250.json.gz", "h200_cuda_graph.pt.trace.json.gz"]
COLUMNS = (
    "device_name",
    "start_ns",
    "dur_ns",
    "before",
    "after",
    "launch",
    "launch_start_ns",
    "launch_delay_ns",
)


def gaps(path: Path, store: Path) -> list[tuple[Any, ...]]:
    rows = open_trace(path, store=store).arrow("SELECT * FROM gaps").to_pylist()
    return sorted(tuple(row[name] for name in COLUMNS) for row in rows)


def plain(path: Path) -> list[tuple[Any, ...]]:
    """Every end after which nothing runs until a later start, found by looking at all work each time."""
    devices = defaultdict(list)
    for work in Oracle.of(path).work:
        devices[device_of(work)].append(work)
    found: list[tuple[Any, ...]] = []
    for device, works in devices.items():
        ordered = sorted(works, key=lambda work: (work.start, work.index))
        before = ordered[0]
        for after in ordered[1:]:
            if after.start > before.end:
                launch = after.launch
                late = min(max(launch.start - before.end, 0), after.start - before.end) if launch else 0
                place = (launch.index, launch.start) if launch else (None, None)
                gap = before.end, after.start - before.end, before.index, after.index
                found.append((device, *gap, *place, late))
            before = max(before, after, key=lambda work: (work.end, work.index))
    return sorted(found)


def test_by_hand(tmp_path: Path) -> None:
    # Device 0: busy 10..20, 18..30 (another stream), 50..60, 70..70, 100..101. The launch of the third began
    # at 42, 12 after the gap did; that of the fourth before its gap; the last has none.
    drawing = (
        Drawing(base_ns=10**15)
        .launch("cudaLaunchKernel", 42, 3, corr=3)
        .launch("cudaLaunchKernel", 55, 1, corr=4)
        .kernel("a", 10, 10)
        .kernel("b", 18, 12, stream=8)
        .kernel("c", 50, 10, corr=3)
        .memset("d", 70, 0, corr=4)
        .memcpy("e", 100, 1)
        .kernel("alone", 0, 500, device=1)
    )
    base = 10**15
    assert gaps(drawing.write(tmp_path / "a.json"), tmp_path) == [
        ("0", base + 30_000, 20_000, 3, 4, 0, base + 42_000, 12_000),
        ("0", base + 60_000, 10_000, 4, 5, 1, base + 55_000, 0),
        ("0", base + 70_000, 30_000, 5, 6, None, None, 0),
    ]


def test_ties(tmp_path: Path) -> None:
    # Three end together at 10: the last in the file is before. Two start together at 20: the first is after.
    drawing = (
        Drawing()
        .kernel("first", 20, 1, stream=9)
        .kernel("x", 0, 10)
        .kernel("z", 3, 7, stream=8)
        .kernel("y", 5, 5, stream=9)
        .kernel("second", 20, 5)
    )
    assert [(row[3], row[4]) for row in gaps(drawing.write(tmp_path / "a.json"), tmp_path)] == [(3, 0)]


def test_a_launch_after_its_work_is_late_by_the_whole_gap(tmp_path: Path) -> None:
    # Clocks of host and device may be off: the launch of a lone correlation counts even if it seems later.
    drawing = Drawing().kernel("a", 0, 1).kernel("b", 5, 1, corr=2).launch("cudaLaunchKernel", 6, 1, corr=2)
    assert [row[-1] for row in gaps(drawing.write(tmp_path / "a.json"), tmp_path)] == [4000]


@pytest.mark.parametrize("seed", range(8))
def test_drawn_profiles(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    drawing = Drawing(base_ns=chance.choice([None, 10**18]))
    for number in range(200):
        at, dur = Decimal(chance.randrange(900)) / 1000, Decimal(chance.randrange(8)) / 1000
        correlation = chance.randrange(90)
        if number % 3:
            kind = chance.choice([drawing.kernel, drawing.memcpy, drawing.memset])
            device = chance.choice([0, 0, 1, None])
            kind("w", at, dur, corr=correlation, device=device, pid=device or 0, stream=number % 4)
        else:
            drawing.launch("cudaLaunchKernel", at, dur, corr=correlation, thread=chance.choice([1, 2]))
    path = drawing.write(tmp_path / "a.json")
    found = gaps(path, tmp_path)
    assert found == plain(path)
    assert found


def test_a_committed_sample(tmp_path: Path) -> None:
    assert gaps(SLOW_ITEM, tmp_path) == plain(SLOW_ITEM)


@pytest.mark.parametrize("name", REAL)
def test_a_real_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    assert gaps(sample(name), tmp_path) == plain(sample(name))


def test_the_thread_of_the_launch(tmp_path: Path) -> None:
    drawing = Drawing().kernel("a", 0, 1).kernel("b", 5, 1, corr=2)
    drawing.op("aten::mm", 0, 1).launch("cudaLaunchKernel", 4, 1, corr=2, thread="worker")
    rows = open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path).arrow("SELECT tid FROM gaps")
    assert rows["tid"].to_pylist() == ["worker"]


def test_no_device(tmp_path: Path) -> None:
    assert gaps(Drawing().op("aten::mm", 0, 1).write(tmp_path / "a.json"), tmp_path) == []


def test_one_piece_of_work(tmp_path: Path) -> None:
    assert gaps(Drawing().kernel("a", 0, 1).write(tmp_path / "a.json"), tmp_path) == []
