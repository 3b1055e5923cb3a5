"""Analyses of allocator snapshots, against drawn ones worked out by hand and a slow count of random ones."""

from __future__ import annotations

import gzip
import pickle
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.samples import DATA, open_shared
from tests.snapshots import BACKWARD, FORWARD, MIB, OPTIMIZER, DrawnAllocator, frame, slow_levels

import stepscope
from stepscope.analyses.allocation_failures import allocation_failures
from stepscope.analyses.allocator_curves import allocator_curves
from stepscope.analyses.allocator_holders import allocator_holders
from stepscope.analyses.allocator_peaks import allocator_peaks
from stepscope.analyses.allocator_pools import allocator_pools
from stepscope.analyses.allocator_steps import allocator_steps
from stepscope.analyses.allocators import allocators
from stepscope.analyses.fragmented_segments import fragmented_segments
from stepscope.errors import StepscopeError
from stepscope.findings.build import build_report
from stepscope.store.trace import Trace

REAL = DATA / "h200_memory_snapshot.pickle.gz"
INIT = (frame("__init__", 7, "/x/site-packages/torch/nn/modules/linear.py"), frame("build", 3))
STATE = (frame("_init_group", 8, "/x/site-packages/torch/optim/adam.py"), *OPTIMIZER)


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def opened(tmp_path: Path, made: DrawnAllocator, *others: DrawnAllocator) -> Trace:
    return stepscope.open(made.write(tmp_path / "x.pickle", *others))


def trained(steps: int = 3, *, keeps: int = 0) -> DrawnAllocator:
    """Parameters before the history, then steps of forward, backward and an optimizer."""
    made = DrawnAllocator()
    at = made.segment(64 * MIB, recorded=False)
    made.alloc(at, MIB, INIT, recorded=False)
    for step in range(steps):
        kept = at + (20 + step) * MIB
        if keeps:
            made.alloc(kept, keeps, FORWARD)
        made.alloc(at + 2 * MIB, 4 * MIB, FORWARD)
        made.alloc(at + 8 * MIB, MIB, BACKWARD)
        made.free(at + 2 * MIB, BACKWARD)
        if step == 0:
            made.alloc(at + 10 * MIB, 2 * MIB, STATE)
        made.alloc(at + 14 * MIB, 512, OPTIMIZER)
        made.free(at + 14 * MIB, OPTIMIZER)
        made.free(at + 8 * MIB, (frame("zero_grad", 9, "/x/site-packages/torch/optim/optimizer.py"),))
    return made


class TestLevels:
    def test_counted_back_from_the_end(self, tmp_path: Path) -> None:
        (row,) = allocators(opened(tmp_path, trained()))
        assert (row.start_bytes, row.peak_bytes, row.active_bytes) == (MIB, 8 * MIB, 3 * MIB)
        assert (row.start_reserved_bytes, row.reserved_bytes, row.live_blocks) == (64 * MIB, 64 * MIB, 2)

    @pytest.mark.parametrize("state", ["active_awaiting_free", "active_pending_free"])
    def test_freed_blocks_that_a_stream_uses_stand_apart(self, state: str, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(64 * MIB)
        made.alloc(at, MIB, FORWARD)
        made.alloc(at + 2 * MIB, 4 * MIB, FORWARD)
        made.states[at + 2 * MIB] = state
        made.free(at + 2 * MIB, FORWARD, late=True)
        trace = opened(tmp_path, made)
        (row,) = allocators(trace)
        assert (row.allocated_bytes, row.live_blocks, row.active_bytes) == (MIB, 1, 5 * MIB)
        assert (row.awaiting_blocks, row.awaiting_bytes) == (1, 4 * MIB)
        assert [(one.blocks, one.awaiting_blocks) for one in allocator_holders(trace)] == [(2, 1)]
        said = build_report(trace).pictures[-1].sentences[0]
        assert said.startswith(
            "1.00 MiB in 1 block in use, 4.00 MiB in 1 block freed but still used by a stream, 64.0 MiB"
        )

    def test_a_block_that_was_not_split_has_its_true_size(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(20 * MIB)
        made.alloc(at, 19 * MIB + 5, size=20 * MIB)
        (row,) = allocators(opened(tmp_path, made))
        assert (row.start_bytes, row.peak_bytes) == (0, 20 * MIB)

    def test_what_is_freed_late_is_active_and_not_allocated(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(2 * MIB)
        made.alloc(at, 1024)
        made.free(at, late=True)
        told = made.snapshot()
        told["segments"][0]["blocks"] = [
            {
                "address": at,
                "size": 1024,
                "requested_size": 1024,
                "state": "active_awaiting_free",
                "frames": [],
            },
            {
                "address": at + 1024,
                "size": 2 * MIB - 1024,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            },
        ]
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(told))
        trace = stepscope.open(path)
        assert [(p.active_bytes, p.allocated_bytes) for p in allocator_curves(trace)] == [
            (0, 0),
            (0, 0),
            (1024, 1024),
            (1024, 0),
        ]

    @pytest.mark.parametrize("seed", range(6))
    def test_as_a_slow_count_says(self, tmp_path: Path, seed: int) -> None:
        made = random_one(seed)
        trace = opened(tmp_path, made)
        levels = slow_levels(made.snapshot())
        points = list(allocator_curves(trace, points=100_000))
        changing = [0] + [
            n + 1 for n, one in enumerate(made.events) if one["action"] not in ("oom", "free_requested")
        ]
        by_nth = {point.nth: (point.active_bytes, point.reserved_bytes) for point in points}
        assert {n: by_nth[n - 1] for n in changing} == {n: levels[n] for n in changing}
        (row,) = allocators(trace)
        assert row.peak_bytes == max(active for active, _ in levels)
        assert row.reserved_peak_bytes == max(reserved for _, reserved in levels)
        assert (row.start_bytes, row.start_reserved_bytes) == levels[0]
        assert sum(one.bytes for one in allocator_peaks(trace)) == row.peak_bytes
        assert sum(one.bytes for one in allocator_holders(trace)) == row.active_bytes

    def test_few_points_lose_no_peak(self, tmp_path: Path) -> None:
        trace = open_shared(REAL)
        (row,) = allocators(trace)
        few = list(allocator_curves(trace, points=20))
        assert len(few) <= 20
        assert max(point.active_bytes for point in few) == row.peak_bytes
        with pytest.raises(StepscopeError, match="too few"):
            allocator_curves(trace, points=3)

    def test_sizes_are_rounded_as_the_settings_say(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(64 * MIB)
        made.alloc(at, 5 * MIB)
        made.free(at)
        told = made.snapshot()
        told["allocator_settings"]["roundup_power2_divisions"] = {"1": 0, "2": 0, "4": 2, "8": 2}
        path = tmp_path / "x.pickle"
        path.write_bytes(pickle.dumps(told))
        (row,) = allocators(stepscope.open(path))
        assert row.peak_bytes == 6 * MIB


def random_one(seed: int) -> DrawnAllocator:
    chance = random.Random(seed)
    made = DrawnAllocator()
    places = [
        made.segment(64 * MIB, recorded=chance.random() < 0.5) + n * MIB for _ in range(3) for n in range(60)
    ]
    for place in chance.sample(places, 20):
        made.alloc(place, chance.randrange(1, MIB), FORWARD, recorded=False)
    for _ in range(400):
        place = chance.choice(places)
        stack = chance.choice([FORWARD, BACKWARD, OPTIMIZER, ()])
        if place in made.live:
            made.free(place, stack)
        else:
            made.alloc(place, chance.randrange(1, MIB), stack)
    return made


class TestKinds:
    def test_at_the_peak(self, tmp_path: Path) -> None:
        found = {
            (row.category, row.phase, row.freed_in, row.bytes)
            for row in allocator_peaks(opened(tmp_path, trained()))
        }
        assert found == {
            ("activations", "forward", "backward", 4 * MIB),
            ("optimizer state", "optimizer", "kept", 2 * MIB),
            ("gradients", "backward", "optimizer", MIB),
            ("parameters", "other", "kept", MIB),
        }

    def test_sites(self, tmp_path: Path) -> None:
        rows = list(allocator_holders(opened(tmp_path, trained())))
        assert [(row.site, row.category, row.bytes) for row in rows] == [
            ("/home/me/train.py(22): step", "optimizer state", 2 * MIB),
            ("/home/me/train.py(3): build", "parameters", MIB),
        ]

    def test_of_a_real_training(self) -> None:
        trace = open_shared(REAL)
        sizes: Counter[str] = Counter()
        for row in allocator_peaks(trace):
            sizes[row.category] += row.bytes
        assert sizes["optimizer state"] == 2 * sizes["parameters"] == 1_209_237_504
        assert sizes["activations"] > 0.6 * sizes.total()
        assert sizes["unknown"] < 0.01 * sizes.total()

    def test_with_python_frames_alone_the_engine_has_no_stack(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(64 * MIB)
        for _ in range(2):
            made.alloc(at, MIB, FORWARD)
            made.alloc(at + 2 * MIB, 2 * MIB, ())
            made.free(at, ())
            made.free(at + 2 * MIB, OPTIMIZER)
        found = {
            (row.category, row.phase, row.freed_in, row.bytes)
            for row in allocator_peaks(opened(tmp_path, made))
        }
        assert found == {
            ("activations", "forward", "backward", MIB),
            ("gradients", "backward", "optimizer", 2 * MIB),
        }

    def test_without_a_history_all_is_told_by_stacks(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        made.alloc(made.segment(MIB, recorded=False), 1000, INIT, recorded=False)
        trace = opened(tmp_path, made)
        assert [row.category for row in allocator_holders(trace)] == ["parameters"]
        assert not len(allocator_peaks(trace))
        assert "_record_memory_history" in allocator_peaks(trace).notes[0]


class TestSteps:
    def test_found_by_the_optimizers_frames(self, tmp_path: Path) -> None:
        rows = list(allocator_steps(opened(tmp_path, trained(4))))
        assert [row.source for row in rows] == ["optimizer"] * 3
        assert [row.growth_bytes for row in rows] == [2 * MIB, 0, 0]

    def test_found_by_marks(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        at = made.segment(64 * MIB)
        for step in range(3):
            made.mark(f"ProfilerStep#{step + 5}", "START")
            made.alloc(at + step * MIB, MIB, FORWARD)
            made.mark(f"ProfilerStep#{step + 5}", "END")
        rows = list(allocator_steps(opened(tmp_path, made)))
        assert [(row.step, row.source, row.start_bytes, row.end_bytes) for row in rows] == [
            (5, "mark", 0, MIB),
            (6, "mark", MIB, 2 * MIB),
            (7, "mark", 2 * MIB, 3 * MIB),
        ]
        assert {(row.kept_site, row.kept_phase, row.kept_bytes) for row in rows} == {
            ("/home/me/train.py(10): forward", "forward", MIB)
        }

    def test_of_a_real_training(self) -> None:
        rows = list(allocator_steps(open_shared(REAL)))
        assert [row.growth_bytes for row in rows] == [2_520_186_880, 512, 512]


class TestFragmentation:
    def test_pinned_and_returnable(self, tmp_path: Path) -> None:
        made = DrawnAllocator()
        full, held, small = (
            made.segment(32 * MIB),
            made.segment(128 * MIB),
            made.segment(2 * MIB, kind="small"),
        )
        made.alloc(held + 40 * MIB, 512, FORWARD)
        made.alloc(small, 512)
        trace = opened(tmp_path, made)
        large, little = allocator_pools(trace)
        assert (large.returnable_bytes, large.pinned_bytes) == (32 * MIB, 128 * MIB - 512)
        # Pages of 20 MiB from the start: two before the block, three after it, less the one that it lies in.
        assert large.pinned_page_bytes == (2 + 3) * 20 * MIB
        assert large.largest_free_bytes == 88 * MIB - 512
        assert (little.pinned_bytes, little.pinned_page_bytes) == (2 * MIB - 512, 0)
        first, _ = fragmented_segments(trace)
        assert (first.address, first.free_bytes, first.site) == (
            held,
            128 * MIB - 512,
            "/home/me/train.py(10): forward",
        )
        assert full not in {row.address for row in fragmented_segments(trace)}


class TestFailures:
    def test_who_held_the_memory(self, tmp_path: Path) -> None:
        made = trained(1)
        made.oom(100 * MIB, 5 * MIB, FORWARD)
        rows = list(allocation_failures(opened(tmp_path, made)))
        assert [(row.holder_rank, row.holder_category, row.holder_bytes) for row in rows] == [
            (1, "optimizer state", 2 * MIB),
            (2, "parameters", MIB),
        ]
        (asked,) = {
            (row.asked_bytes, row.device_free_bytes, row.active_bytes, row.unused_bytes) for row in rows
        }
        assert asked == (100 * MIB, 5 * MIB, 3 * MIB, 61 * MIB)

    def test_none(self) -> None:
        assert allocation_failures(open_shared(REAL)).notes == ("No allocation failed in the history.",)


class TestCut:
    def test_nothing_is_counted_back(self, tmp_path: Path) -> None:
        whole = gzip.decompress(REAL.read_bytes())
        path = tmp_path / "x.pickle"
        path.write_bytes(whole[: len(whole) * 3 // 4])
        trace = stepscope.open(path)
        (row,) = allocators(trace)
        assert row.reserved_bytes == 5_926_551_552
        assert row.peak_bytes is None
        assert "is cut" in allocator_peaks(trace).notes[0]


@pytest.mark.parametrize(
    "answer",
    [
        allocators,
        allocator_curves,
        allocator_peaks,
        allocator_holders,
        allocator_pools,
        allocator_steps,
        allocation_failures,
        fragmented_segments,
    ],
)
def test_a_trace_without_a_snapshot_says_how_to_take_one(answer: Any) -> None:
    table = answer(open_shared(DATA / "h200_mem_timeline.pt.trace.json.gz"))
    assert not len(table)
    assert "_dump_snapshot" in table.notes[0]


@pytest.mark.slow
def test_torch_says_the_same(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own summary of segments, with exact sizes."""
    from torch.cuda import _memory_viz as viz

    monkeypatch.setattr(viz, "_format_size", str)
    with gzip.open(REAL) as file:
        told = viz.segsum(pickle.load(file))  # ours, and only here
    found = dict(re.findall(r"^(segments|total_reserved|total_allocated): (\d+)", told, re.MULTILINE))
    (row,) = allocators(open_shared(REAL))
    assert {name: int(value) for name, value in found.items()} == {
        "segments": row.segments,
        "total_reserved": row.reserved_bytes,
        "total_allocated": row.requested_bytes,
    }
