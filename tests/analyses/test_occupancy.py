"""How many threads of a kernel a multiprocessor holds: by hand, and as the profiler estimates it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import DEVICE
from tests.samples import FEW, SAMPLES
from tests.trying import some

from stepscope.costs.occupancy import LaunchShape, Multiprocessor, occupancy_share

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def multiprocessor(**other: Any) -> Multiprocessor:
    """One of a Hopper device, or what is said of another."""
    found = Multiprocessor.of({**DEVICE, **other})
    assert found
    return found


HOPPER = multiprocessor()
AMPERE = multiprocessor(computeMajor=8, computeMinor=0, sharedMemPerMultiprocessor=167_936, numSms=108)
ADA = multiprocessor(
    computeMajor=8, computeMinor=9, maxThreadsPerMultiprocessor=1536, sharedMemPerMultiprocessor=102_400
)
A10 = multiprocessor(
    computeMajor=8, computeMinor=6, maxThreadsPerMultiprocessor=1536, sharedMemPerMultiprocessor=102_400
)
TURING = multiprocessor(
    computeMajor=7, computeMinor=5, maxThreadsPerMultiprocessor=1024, sharedMemPerMultiprocessor=65_536
)
VOLTA = multiprocessor(computeMajor=7, computeMinor=0, sharedMemPerMultiprocessor=98_304, numSms=80)
PASCAL = multiprocessor(computeMajor=6, computeMinor=0, sharedMemPerMultiprocessor=65_536, numSms=56)
MANY = 1 << 20


@pytest.mark.parametrize(
    "on,shape,share",
    [
        # 16 blocks of 4 warps, by threads and by registers (32 x 32 = 1,024 a warp, 16 warps a quarter).
        (HOPPER, LaunchShape(MANY, 128, 32, 0), 1.0),
        # 213,188 + 1,024 bytes are given as 214,272: one block of 384 threads.
        (HOPPER, LaunchShape(MANY, 384, 168, 213_188), 384 / 2048),
        # Half a block for each multiprocessor.
        (HOPPER, LaunchShape(66, 384, 168, 213_188), 192 / 2048),
        # 255 registers x 32 are given as 8,192: 2 warps a quarter, so 8, one block.
        (HOPPER, LaunchShape(MANY, 256, 255, 0), 256 / 2048),
        # 40 registers x 32 = 1,280: 12 warps a quarter, so 9 blocks of 5; undivided it would be 51, and 10.
        (HOPPER, LaunchShape(MANY, 160, 40, 0), 9 * 160 / 2048),
        # 100 threads take 4 warps; 16 such blocks, of which only the threads count.
        (HOPPER, LaunchShape(MANY, 100, 32, 0), 16 * 100 / 2048),
        # Small blocks: as many as a multiprocessor can count.
        (HOPPER, LaunchShape(MANY, 32, 16, 0), 32 * 32 / 2048),
        (ADA, LaunchShape(MANY, 32, 16, 0), 24 * 32 / 1536),
        (A10, LaunchShape(MANY, 32, 16, 0), 16 * 32 / 1536),
        (TURING, LaunchShape(MANY, 32, 16, 0), 16 * 32 / 1024),
        # 24 KiB: 4 of 96 KiB; from 8.0 on each block costs 1 KiB more: 6 of 164 KiB (25,600 each).
        (VOLTA, LaunchShape(MANY, 128, 16, 24_576), 4 * 128 / 2048),
        (AMPERE, LaunchShape(MANY, 128, 16, 24_576), 6 * 128 / 2048),
        # 32,800 bytes are given as 33,024 (units of 256): one of 64 KiB would be two of 32,768.
        (PASCAL, LaunchShape(MANY, 128, 16, 32_800), 1 * 128 / 2048),
        # Registers in halves: 255 x 32 -> 8,192; 4 warps a half, 8 in all.
        (PASCAL, LaunchShape(MANY, 128, 255, 0), 2 * 128 / 2048),
    ],
)
def test_worked_out_by_hand(on: Multiprocessor, shape: LaunchShape, share: float) -> None:
    assert occupancy_share(shape, on) == pytest.approx(share, rel=1e-12)


def test_what_cannot_run_is_unknown() -> None:
    assert occupancy_share(LaunchShape(1, 1024, 255, 0), HOPPER) is None
    assert occupancy_share(LaunchShape(1, 32, 16, 300_000), HOPPER) is None


@pytest.mark.parametrize(
    "other",
    [
        {"warpSize": 64},
        {"numSms": None},
        {"sharedMemPerMultiprocessor": "228 KiB"},
        {"regsPerMultiprocessor": 0},
        {"computeMajor": 99},
    ],
)
def test_a_device_that_is_not_known(other: dict[str, Any]) -> None:
    assert Multiprocessor.of({**DEVICE, **other}) is None


def test_properties_that_are_none() -> None:
    assert Multiprocessor.of(None) is None
    assert Multiprocessor.of([]) is None


@pytest.mark.parametrize(
    "grid,block,registers,shared",
    [
        (None, "[1,1,1]", 1, 0),
        ("[1,1,1]", "what", 1, 0),
        ("[0,1,1]", "[1,1,1]", 1, 0),
        ("[1,1,1]", "[1,1,1]", None, 0),
        ("[1,1,1]", "[1,1,1]", 1, None),
    ],
)
def test_a_shape_that_is_not_whole(grid: Any, block: Any, registers: Any, shared: Any) -> None:
    assert LaunchShape.of(grid, block, registers, shared) is None


# ---------------------------------------------------------------- what the profiler says


def estimates(path: Path) -> dict[tuple[str, str, int, int, Any], int]:
    """Launch shapes of a profile, read with nothing but `json`, and the profiler's estimate of each."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        profile = json.load(file)
    properties = {one["id"]: one for one in profile.get("deviceProperties") or []}
    found = {}
    for event in profile["traceEvents"]:
        args = event.get("args", {})
        estimate = args.get("est. achieved occupancy %")
        on = Multiprocessor.of(properties.get(args.get("device")))
        if event.get("cat") == "kernel" and estimate and on:
            grid, block = json.dumps(args["grid"]), json.dumps(args["block"])
            found[grid, block, args["registers per thread"], args["shared memory"], on] = estimate
    return found


def agreeing(found: dict[tuple[str, str, int, int, Any], int]) -> int:
    """How many agree; the profiler rounds to whole per cents, and computes with 24 bits."""
    count = 0
    for (grid, block, registers, shared, on), estimate in found.items():
        shape = LaunchShape.of(grid, block, registers, shared)
        share = occupancy_share(shape, on) if shape else None
        count += share is not None and abs(share * 100 - estimate) <= 0.5 + 1e-5
    return count


def test_it_agrees_with_every_estimate_in_the_recordings() -> None:
    found = [estimates(path) for path in sorted(RECORDINGS.glob("*.trace.json.gz"))]
    assert sum(map(len, found)) > 200
    assert [agreeing(one) for one in found] == [len(one) for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("names,shapes", some([(FEW, 200), (SAMPLES, 600)], 1), ids=["some", "all"])
def test_it_agrees_with_every_estimate_in_the_samples(
    names: list[str], shapes: int, sample: Callable[[str], Path]
) -> None:
    # V100, A100, H100, H200 and B200; over 600 different launch shapes.
    found = [estimates(sample(name)) for name in names]
    assert sum(map(len, found)) > shapes
    assert [agreeing(one) for one in found] == [len(one) for one in found]
