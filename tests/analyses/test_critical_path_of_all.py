"""What holds for the path of every step, and what real programs are bound by."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.analyses.drawn import HOW, WORLDS, drawings
from tests.analyses.test_critical_path import CALL, LAUNCH, NOTHING, OP, opened, start
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered
from tests.trying import tries

from stepscope.analyses.critical_path import critical_path
from stepscope.analyses.steps import steps
from stepscope.store.trace import Trace

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def assert_covers_every_step(trace: Trace) -> None:
    """The parts of every step sum to it, and the pieces of the first follow one another without a gap."""
    windows = trace.arrow(
        "SELECT step, start_ns, end_ns FROM steps WHERE end_ns > start_ns ORDER BY start_ns"
    ).to_pylist()
    table = critical_path(trace)
    assert sum(row.path_ns for row in table) == sum(step["end_ns"] - step["start_ns"] for step in windows)
    for number in {step["step"] for step in windows}:
        lengths = [step["end_ns"] - step["start_ns"] for step in windows if step["step"] == number]
        assert sum(row.path_ns for row in table if row.step == number) == sum(lengths)
    items = list(critical_path(trace, items=1 << 30))
    assert sum(row.path_ns for row in items) == sum(row.path_ns for row in table)
    assert all(row.kind != "host" for row in table)
    if windows:
        found = list(critical_path(trace, segments=1 << 30))
        assert (found[0].start_ns, start(found[-1]) + found[-1].path_ns) == (
            windows[0]["start_ns"],
            windows[0]["end_ns"],
        )
        assert all(
            start(one) + one.path_ns == other.start_ns and one.path_ns > 0 for one, other in pairwise(found)
        )


def assert_what_is_said_to_have_run_did_run(trace: Trace) -> None:
    """Each instant of the path that is a kernel's has a kernel running; so for the whole step."""
    path = critical_path(trace)
    for step in steps(trace):
        on_path = {row.kind: row.path_ns for row in path if row.step == step.step}
        assert on_path.get("kernel", 0) <= step.kernel_ns
        assert sum(on_path.get(kind, 0) for kind in ("kernel", "memcpy", "memset", "communication")) <= (
            step.kernel_ns + step.memcpy_ns + step.memset_ns + step.communication_ns
        )


@pytest.mark.slow
@settings(HOW, max_examples=tries(2, 80))
@given(drawings(marks=True, worlds=WORLDS))
def test_the_path_of_a_random_profile_covers_its_steps(drawing: Drawing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_covers_every_step(opened(drawing, Path(folder)))


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_the_path_of_a_real_profile_covers_its_steps(
    name: str, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = open_shared(sample(name))
    assert_covers_every_step(trace)
    assert_what_is_said_to_have_run_did_run(trace)


def shares(path: Path) -> dict[str, float]:
    """Kinds with their part of the median step."""
    table = critical_path(open_shared(path))
    numbers = sorted({row.step for row in table if row.step is not None})
    return {row.kind: row.share or 0.0 for row in table if row.step == numbers[len(numbers) // 2]}


def test_copies_and_compute_that_take_turns(tmp_path: Path) -> None:
    # The program copies two matrices in, multiplies each twice on another stream as it arrives, and copies
    # the product back. The second copy in runs beside the first products: the path is the first copy, all
    # four products, the copy back.
    trace = open_shared(RECORDINGS / "two_streams.pt.trace.json.gz")
    table = critical_path(trace)
    for number in (2, 3, 4):
        found = {row.kind: row.segments for row in table if row.step == number}
        assert (found["kernel"], found["memcpy"]) == (4, 2)
        assert (
            sum(row.share or 0 for row in table if row.step == number and row.kind in ("kernel", "memcpy"))
            > 0.97
        )
    copies = {row.name: row.segments for row in critical_path(trace, items=9) if row.kind == "memcpy"}
    assert copies == {"Memcpy HtoD (Pinned -> Device)": 3, "Memcpy DtoH (Device -> Pinned)": 3}


HOST = (OP, CALL, NOTHING, "Python between ops", "dataloader", "allocation call")


@pytest.mark.parametrize(
    "name,kinds,least",
    [
        # The device is busy for 0.3 of 6 ms: that it is waited for 10 times a step costs some 3 %.
        ("h200_slow_item", HOST, 0.95),
        ("h200_resnet50", HOST, 0.99),
        # A step is a copy of 11 ms that is waited for, and 6 ms of kernels that begin after it.
        ("h200_prefetch_serial", ("memcpy", "kernel"), 0.95),
        ("h200_ddp_gloo_rank0", ("communication",), 0.9),
        # Rank 1 sleeps 30 of 104 ms at the start of each step, then both wait for one another.
        ("h200_ddp_gloo_rank1", ("communication", NOTHING), 0.9),
    ],
)
def test_what_real_programs_are_bound_by(
    name: str, kinds: tuple[str, ...], least: float, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    found = shares(sample(f"{name}.pt.trace.json.gz"))
    assert sum(found.get(kind, 0.0) for kind in kinds) >= least


def tangle(seed: int) -> Drawing:
    """Waits, threads, streams and graphs at random, at few instants, so that much happens at once."""
    chance = random.Random(seed)
    drawing = Drawing()
    last = chance.choice([20, 200, 2000])
    calls = [
        LAUNCH,
        LAUNCH,
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
    ]
    calls += ["cudaStreamWaitEvent", "cudaEventRecord", "cudaFree", "cudaMemcpy"]
    for number in range(chance.randrange(5, 120)):
        at, length = chance.randrange(last), chance.choice([0, 1, 3, last // 4])
        match chance.randrange(6):
            case 0:
                backward = {"Fwd thread id": chance.randrange(2), "Sequence number": number}
                drawing.op("op", at, length, thread=chance.randrange(4), args=backward)
            case 1:
                drawing.annotation("gloo:all_reduce", at, length, thread=chance.randrange(2, 6))
            case 2:
                drawing.frame("f.py(1): f", at, length, thread=chance.randrange(4))
            case _:
                name = chance.choice(calls)
                drawing.launch(name, at, length, corr=number, thread=chance.randrange(4))
                for _ in range(chance.randrange(3)):
                    later = at + chance.choice([-2, 0, 0, 1, 5, last // 3])
                    where: dict[str, Any] = {"stream": chance.randrange(3), "device": chance.randrange(2)}
                    copy = "Memcpy DtoH (Device -> Pageable)"
                    draw = drawing.memcpy if "Memcpy" in name else drawing.kernel
                    draw(copy, max(later, 0), chance.choice([0, 0, 1, 4, last // 5]), corr=number, **where)
    drawing.mark(1, 0, last // 2, thread=chance.randrange(3)).mark(2, last // 2, last)
    return drawing


@pytest.mark.parametrize("seed", range(12))
def test_the_path_of_a_tangle_covers_its_steps(seed: int, tmp_path: Path) -> None:
    assert_covers_every_step(opened(tangle(seed), tmp_path))
