from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, changed, drawn, mean_step

from stepscope.analyses.allocations import Allocation
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.driver_allocations import driver_allocations

STEP = mean_step(steps=11)
PLAYED = changed(0.2, 0.3)
TENSORS = drawn(StepOp, {"name": "aten::empty", "calls": 550, "per_step": 50.0})
GAPS = drawn(
    IdleGap,
    {"device": "0", "side": "host", "spent_in": "allocation call", "idle_ns": 11 * MS // 2},
    {"device": "0", "side": "host", "spent_in": "host op", "drained_by": "cudaFree", "idle_ns": 33 * MS // 2},
    {
        "device": "0",
        "side": "host",
        "spent_in": "host op",
        "drained_by": "cudaMemcpyAsync",
        "idle_ns": 9 * MS,
    },
    {"device": "1", "side": "host", "spent_in": "allocation call", "idle_ns": 99 * MS},
    {"device": "0", "side": "device", "spent_in": "waited", "drained_by": "cudaFree", "idle_ns": 9 * MS},
)


def call(name: str, **told: Any) -> dict[str, Any]:
    given = {"source": "driver", "call": name, "op": "aten::empty", "allocations": 20, "host_ns": 15 * MS}
    return {**given, "per_step": 2.0, "user_frame": "train.py(7): step", **told}


def test_the_gain_is_what_a_replay_without_these_calls_says() -> None:
    table = drawn(Allocation, call("cudaMalloc"), call("cudaFree", allocations=0, frees=20, host_ns=3 * MS))
    advice = assert_bounded(driver_allocations(STEP, table, GAPS, TENSORS, PLAYED), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.2, 1.2 * 0.3))
    assert advice.evidence["idle_in_calls_ns"] == 0.5 * MS  # in 10 steady steps
    assert advice.evidence["idle_after_calls_ns"] == 2.0 * MS  # 1.5, and a quarter of both for latency
    assert advice.evidence["allocations_per_step"] == 2.0
    assert advice.evidence["host_ns"] == 1.8 * MS
    assert "expandable_segments" in advice.fix
    assert str(advice.locations[0]) == "train.py:7 step"


def test_pinning_in_every_step_has_its_own_cure() -> None:
    table = drawn(Allocation, call("cudaHostAlloc"), call("cudaMalloc", host_ns=1 * MS))
    advice = assert_bounded(driver_allocations(STEP, table, GAPS, TENSORS, PLAYED), STEP)
    assert "pin_memory=True" in advice.fix


def test_as_many_calls_as_tensors_are_an_allocator_that_keeps_nothing() -> None:
    every = drawn(Allocation, call("cudaMalloc", allocations=700), call("cudaFree", frees=700, op=None))
    advice = assert_bounded(driver_allocations(STEP, every, GAPS, TENSORS, PLAYED), STEP)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in advice.fix
    assert "keeps no blocks" in advice.because
    assert advice.locations == ()


def test_it_leaves_an_emptied_cache_to_its_own_rule() -> None:
    assert "cache_clearing" in driver_allocations.yields_to


def test_it_is_silent_about_a_block_now_and_then() -> None:
    once = drawn(Allocation, call("cudaMalloc", allocations=3))
    assert driver_allocations(STEP, once, GAPS, TENSORS, PLAYED) is None
    torch_own = drawn(Allocation, {"source": "allocator", "allocations": 900})
    assert driver_allocations(STEP, torch_own, GAPS, TENSORS, PLAYED) is None


def test_it_is_silent_where_a_single_step_was_recorded() -> None:
    table = drawn(Allocation, call("cudaMalloc"))
    assert driver_allocations(mean_step(steps=1), table, GAPS, TENSORS, PLAYED) is None


def test_it_is_silent_about_trifles() -> None:
    table = drawn(Allocation, call("cudaMalloc", host_ns=MS // 2))
    assert driver_allocations(STEP, table, drawn(IdleGap), TENSORS, PLAYED) is None
    low = driver_allocations(STEP, table, drawn(IdleGap), TENSORS, PLAYED, least_share=0.001)
    assert low is not None
