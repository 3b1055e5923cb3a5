from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, changed, drawn, mean_step

from stepscope.analyses.allocations import Allocation
from stepscope.analyses.cache_clearings import CacheClearing
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.python_frames import PythonFrame
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.cache_clearing import cache_clearing
from stepscope.tables import Table

STEP = mean_step(steps=11)
PLAYED = changed(0.2, 0.3)
NO_FRAMES = drawn(PythonFrame)
NO_RUNS = drawn(CacheClearing)
SEEN = drawn(PythonFrame, {"name": "torch/cuda/memory.py(212): empty_cache", "calls": 11})
TENSORS = drawn(StepOp, {"name": "aten::empty", "calls": 550, "per_step": 50.0})
GAPS = drawn(
    IdleGap,
    {"device": "0", "side": "host", "spent_in": "allocation call", "idle_ns": 11 * MS},
    {
        "device": "0",
        "side": "host",
        "spent_in": "host op",
        "drained_by": "cudaFree",
        "idle_ns": 11 * MS,
    },
)


def calls(**free: Any) -> Table[Allocation]:
    malloc = {
        "source": "driver",
        "call": "cudaMalloc",
        "op": "aten::empty",
        "allocations": 60,
        "host_ns": 20 * MS,
    }
    given = {"source": "driver", "call": "cudaFree", "frees": 60, "per_step": 6.0, "host_ns": 10 * MS}
    return drawn(Allocation, malloc, {**given, "user_frame": "train.py(40): step", **free})


def test_frees_outside_of_operators_are_the_programs_own() -> None:
    advice = assert_bounded(cache_clearing(STEP, calls(), GAPS, TENSORS, NO_FRAMES, NO_RUNS, PLAYED), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.2, 1.2 * 0.3))
    assert advice.certainty == "likely"
    assert advice.evidence["frees_per_step"] == 6.0
    assert [str(place) for place in advice.locations] == ["train.py:40 step"]


def test_stacks_make_it_certain() -> None:
    advice = assert_bounded(cache_clearing(STEP, calls(), GAPS, TENSORS, SEEN, NO_RUNS, PLAYED), STEP)
    assert advice.certainty == "certain"
    assert (
        "torch.cuda.empty_cache() returns 6 blocks a step to the driver, and the step requests 6 again."
        in advice.because
    )


def test_it_is_silent_where_the_allocator_frees_for_want_of_memory() -> None:
    assert cache_clearing(STEP, calls(op="aten::empty"), GAPS, TENSORS, NO_FRAMES, NO_RUNS, PLAYED) is None


def test_it_is_silent_where_tensors_are_freed_one_by_one() -> None:
    few = drawn(StepOp, {"name": "aten::empty", "calls": 55, "per_step": 5.0})
    assert cache_clearing(STEP, calls(), GAPS, few, NO_FRAMES, NO_RUNS, PLAYED) is None


def test_it_is_silent_where_nothing_is_freed() -> None:
    assert cache_clearing(STEP, calls(frees=5), GAPS, TENSORS, SEEN, NO_RUNS, PLAYED) is None
    assert cache_clearing(STEP, drawn(Allocation), GAPS, TENSORS, SEEN, NO_RUNS, PLAYED) is None


def test_it_is_silent_about_trifles() -> None:
    step = mean_step(steps=11, step_ns=1000.0 * MS, unprofiled_ns=(900.0 * MS, 1000.0 * MS))
    assert cache_clearing(step, calls(), GAPS, TENSORS, SEEN, NO_RUNS, PLAYED) is None
    assert cache_clearing(step, calls(), GAPS, TENSORS, SEEN, NO_RUNS, PLAYED, least_share=0.001) is not None


def runs(steps: int = 11, pause_ns: int = 30 * MS, idle_ns: int = 2 * MS) -> Table[CacheClearing]:
    """Emptied caches of as many steps; after the last one nothing is launched any more."""
    waited = [*(idle_ns for _ in range(steps - 1)), 0]
    return drawn(
        CacheClearing,
        *(
            {"step": step, "frees": 6, "free_ns": MS, "pause_ns": pause_ns, "idle_ns": idle}
            for step, idle in enumerate(waited)
        ),
    )


def test_a_long_pause_right_before_may_be_the_collector() -> None:
    advice = assert_bounded(cache_clearing(STEP, calls(), GAPS, TENSORS, NO_FRAMES, runs(), PLAYED), STEP)
    without = assert_bounded(cache_clearing(STEP, calls(), GAPS, TENSORS, NO_FRAMES, NO_RUNS, PLAYED), STEP)
    assert STEP.gain(advice.saving).low_share == STEP.gain(without.saving).low_share
    assert advice.saving.waited_ns[1] == pytest.approx(without.saving.waited_ns[1] + 2 * MS)
    assert "gc.collect()" in advice.because
    assert "gc.collect()" in advice.fix
    assert advice.claims == {Claim(Time.STARVED, part) for part in (Part.ALLOCATION, Part.PYTHON)}


@pytest.mark.parametrize(
    "clearings,frames",
    [(runs(pause_ns=MS), NO_FRAMES), (runs(steps=5), NO_FRAMES), (runs(), SEEN)],
    ids=["too short for a collection", "in few steps", "stacks show what it is"],
)
def test_other_pauses_are_not_the_collector(
    clearings: Table[CacheClearing], frames: Table[PythonFrame]
) -> None:
    advice = assert_bounded(cache_clearing(STEP, calls(), GAPS, TENSORS, frames, clearings, PLAYED), STEP)
    assert "gc.collect()" not in advice.because + advice.fix
    assert advice.claims == {Claim(Time.STARVED, Part.ALLOCATION)}


def test_results_of_operators_are_tensors_too() -> None:
    few = {"name": "aten::empty", "calls": 55, "per_step": 5.0}
    layers = {"name": "aten::cudnn_convolution", "calls": 286, "per_step": 26.0, "launches": 286}
    made = drawn(StepOp, few, layers)
    assert cache_clearing(STEP, calls(), GAPS, made, NO_FRAMES, NO_RUNS, PLAYED) is not None
    on_host = drawn(StepOp, few, {**layers, "launches": 0})
    assert cache_clearing(STEP, calls(), GAPS, on_host, NO_FRAMES, NO_RUNS, PLAYED) is None
