"""Devices over the span of their work and inside the marked steps, and their occupancy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import DEVICE, Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.devices import Device, devices

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def rows(drawing: Drawing, folder: Path) -> dict[tuple[str, str], Device]:
    """The rows of a drawn profile by device and window."""
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return {(row.device, row.window): row for row in devices(trace)}


def launched(drawing: Drawing, name: str, at: float, start: float, dur: float, **more: Any) -> Drawing:
    corr = len(drawing.events) + 1
    drawing.launch("cudaLaunchKernel", at, 1, corr=corr)
    return drawing.kernel(name, start, dur, corr=corr, **more)


def test_without_marks_there_is_one_window(tmp_path: Path) -> None:
    assert list(rows(Drawing().kernel("k", 0, 10), tmp_path)) == [("0", "span")]


def test_both_windows_worked_out(tmp_path: Path) -> None:
    # Marks 10..20 and 30..40. Launched before the first: 2..14, so the first step starts at 14; launched in
    # it: 16..26, so it ends at 26. In the second: 30..36. Steps 14..26 and 30..40: 22. Work in them: 16..26
    # and 30..36.
    drawing = Drawing().mark(1, 10, 10).mark(2, 30, 10)
    launched(drawing, "a", 1, 2, 12)
    launched(drawing, "ncclDevKernel_AllReduce", 12, 16, 10)
    launched(drawing, "c", 32, 30, 6)
    drawing.memset("Memset (Device)", 50, 2)  # unlinked, and after the steps
    found = rows(drawing, tmp_path)
    span, steps = found["0", "span"], found["0", "steps"]
    assert (span.window_ns, span.busy_ns, span.idle_ns) == (50_000, 30_000, 20_000)
    assert (steps.window_ns, steps.busy_ns, steps.idle_ns) == (22_000, 16_000, 6_000)
    assert (span.compute_ns, span.communication_ns, span.memset_ns) == (18_000, 10_000, 2_000)
    assert (steps.compute_ns, steps.communication_ns, steps.memset_ns) == (6_000, 10_000, 0)
    assert span.unlinked_ns == steps.unlinked_ns == 2_000
    assert steps.utilization_share == 16 / 22


def test_blocks_inside_the_steps(tmp_path: Path) -> None:
    # One step, 0..40. 10..30 with half a block for each multiprocessor, two at once from 20 on: 5 + 10 of 40.
    drawing = Drawing().mark(1, 0, 40)
    launched(drawing, "a", 1, 10, 20, args={"blocks per SM": 0.5})
    launched(drawing, "a", 2, 20, 10, stream=8, args={"blocks per SM": 0.5})
    found = rows(drawing, tmp_path)
    assert found["0", "steps"].sm_efficiency_share == 15 / 40
    assert found["0", "span"].sm_efficiency_share == 15 / 20


LARGE = {"grid": [132, 1, 1], "block": [384, 1, 1], "registers per thread": 168, "shared memory": 213_188}
ESTIMATE = "est. achieved occupancy %"


def test_occupancy_is_a_mean_over_kernel_time(tmp_path: Path) -> None:
    # 10 µs at 50 %; 20 µs that the profiler takes for 0 though there are 12 warps, really 384 of 2,048
    # threads; 10 µs at 0 with half a warp, which is 0; 10 µs that say nothing; a copy, which has none.
    # Known: 40 of 50 µs; 5 + 20 x 0.1875 of them = 8.75.
    drawing = Drawing().mark(1, 0, 100)
    launched(drawing, "a", 1, 10, 10, args={ESTIMATE: 50, "warps per SM": 32.0})
    launched(drawing, "b", 2, 20, 20, args={ESTIMATE: 0, "warps per SM": 12.0, **LARGE})
    launched(drawing, "c", 3, 40, 10, args={ESTIMATE: 0, "warps per SM": 0.5, **LARGE})
    launched(drawing, "d", 4, 50, 10)
    drawing.memcpy("Memcpy DtoD (Device -> Device)", 60, 10)
    row = rows(drawing, tmp_path)["0", "steps"]
    assert row.occupancy_share == pytest.approx(8.75 / 40, rel=1e-12)
    assert row.occupancy_known_share == 40 / 50


def test_occupancy_of_the_window_alone(tmp_path: Path) -> None:
    # The step is 10..40. Launched before it: 0..10 at 100 %. Inside: 20..40 at 25 %.
    drawing = Drawing().mark(1, 5, 35)
    launched(drawing, "a", 0, 0, 10, args={ESTIMATE: 100, "warps per SM": 64.0})
    launched(drawing, "b", 6, 20, 20, args={ESTIMATE: 25, "warps per SM": 16.0})
    found = rows(drawing, tmp_path)
    assert found["0", "steps"].occupancy_share == 0.25
    assert found["0", "span"].occupancy_share == pytest.approx((10 * 1 + 20 * 0.25) / 30, rel=1e-12)


@pytest.mark.parametrize("estimate", [-99, "inf", "N/A", 1000])
def test_estimates_that_are_none(estimate: Any, tmp_path: Path) -> None:
    row = rows(Drawing().kernel("a", 0, 10, args={ESTIMATE: estimate}), tmp_path)["0", "span"]
    assert (row.occupancy_share, row.occupancy_known_share) == (None, 0.0)


def test_without_device_properties_only_estimates_count(tmp_path: Path) -> None:
    drawing = Drawing().meta(deviceProperties=[])
    drawing.kernel("a", 0, 10, args={ESTIMATE: 0, "warps per SM": 12.0, **LARGE})
    drawing.kernel("b", 10, 30, args={ESTIMATE: 40, "warps per SM": 26.0})
    trace = stepscope.open(drawing.write(tmp_path / "drawn.json"), store=tmp_path / "store")
    table = devices(trace)
    (row,) = table
    assert (row.name, row.occupancy_share, row.occupancy_known_share) == (None, 0.4, 0.75)
    assert len(table.notes) == 1


def test_without_kernels_there_is_no_occupancy(tmp_path: Path) -> None:
    row = rows(Drawing().memcpy("Memcpy HtoD (Pinned -> Device)", 0, 10), tmp_path)["0", "span"]
    assert (row.occupancy_share, row.occupancy_known_share) == (None, None)


def test_each_device_has_its_own_limits(tmp_path: Path) -> None:
    # The same launch: 213,188 bytes fit once into 228 KiB, and twice into 456 KiB.
    twice = {**DEVICE, "id": 1, "name": "Other", "sharedMemPerMultiprocessor": 466_944}
    drawing = Drawing().meta(deviceProperties=[DEVICE, twice])
    shape = {ESTIMATE: 0, "warps per SM": 120.0, **LARGE, "grid": [1320, 1, 1], "registers per thread": 64}
    drawing.kernel("a", 0, 10, device=0, args=shape).kernel("a", 0, 10, device=1, args=shape)
    found = rows(drawing, tmp_path)
    assert found["0", "span"].occupancy_share == pytest.approx(384 / 2048, rel=1e-12)
    assert found["1", "span"].occupancy_share == pytest.approx(768 / 2048, rel=1e-12)
    assert found["1", "span"].name == "Other"


def test_occupancy_of_a_real_profile(tmp_path: Path) -> None:
    # Read with `json` alone. Where the profiler wrote 0, what it wrote of blocks is enough to bound the rest:
    # at least one thread of one warp, at most all.
    path = RECORDINGS / "attention.pt.trace.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    kernels = [(round(e["dur"] * 1000), e["args"]) for e in events if e.get("cat") == "kernel"]
    said = [
        (dur, args[ESTIMATE] / 100) for dur, args in kernels if args[ESTIMATE] or args["warps per SM"] < 1
    ]
    unsaid = [(dur, args) for dur, args in kernels if not args[ESTIMATE] and args["warps per SM"] >= 1]
    assert unsaid
    low = sum(dur * share for dur, share in said)
    high = low + sum(dur * min(1, args["warps per SM"] / 64) for dur, args in unsaid)
    total = sum(dur for dur, _ in kernels)
    trace = open_shared(path)
    row = next(row for row in devices(trace) if row.window == "span")
    assert row.occupancy_known_share == 1
    assert low / total < (row.occupancy_share or 0) <= high / total
