from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.recomputation import recomputation
from stepscope.tables import Table

AGAIN = drawn(
    StarvingPhase,
    {"phase": "backward", "starved_ns": 9 * MS, "device_ns": 40 * MS},
    {"phase": "recomputation", "starved_ns": 8 * MS, "device_ns": 10 * MS},
)
NO_OPS = drawn(StepOp)


def op(name: str, phase: str, within: str, host_ms: int, **told: Any) -> dict[str, Any]:
    return {"name": name, "phase": phase, "within": within, "host_ns": host_ms * MS, **told}


def ops(outer: str) -> Table[StepOp]:
    return drawn(
        StepOp,
        op(outer, "backward", "evaluate_function", 18),
        op("aten::linear", "recomputation", outer, 12, user_frame="model.py(9): forward"),
        op("aten::addmm", "recomputation", "aten::linear", 11),
        op("aten::mm", "backward", outer, 4),
    )


def memory(peak_share: float, **told: Any) -> Table[DeviceMemory]:
    peak = int(peak_share * (H200.memory_bytes or 0))
    return drawn(DeviceMemory, {"device": "0", "peak_bytes": peak, "reserved_peak_bytes": peak, **told})


def test_the_device_is_spared_what_it_did_twice() -> None:
    step = busy_pace()
    advice = assert_bounded(recomputation(step, facts(), AGAIN, NO_OPS, memory(0.2)), step)
    assert advice.saving.device_ns == (1.0 * MS, 1.0 * MS)
    assert advice.certainty == "likely"
    assert "20.0 % of 140 GiB" in advice.because


def test_the_host_is_spared_it_too_with_what_checkpointing_itself_costs() -> None:
    step = mean_step()
    advice = assert_bounded(recomputation(step, facts(), AGAIN, ops("AddmmBackward0"), memory(0.2)), step)
    assert advice.saving.starved_ns == pytest.approx((1.0 * MS, 2.4 * MS))  # 18 and 18 − 12, in 10 steps
    assert [str(place) for place in advice.locations] == ["model.py:9 forward"]


def test_the_backward_of_a_layer_is_not_checkpointing() -> None:
    step = mean_step()
    reentrant = ops("CheckpointFunctionBackward")
    advice = assert_bounded(recomputation(step, facts(), AGAIN, reentrant, memory(0.2)), step)
    assert advice.saving.starved_ns == pytest.approx((1.0 * MS, 1.2 * MS))


def test_without_operators_there_is_latency() -> None:
    step = mean_step()
    advice = assert_bounded(recomputation(step, facts(), AGAIN, NO_OPS, memory(0.2)), step)
    assert advice.saving.starved_ns == pytest.approx((1.0 * MS, 1.0 * MS))


def test_where_memory_was_not_recorded_it_is_only_possible() -> None:
    step = busy_pace()
    advice = assert_bounded(
        recomputation(step, facts(memory=False), AGAIN, NO_OPS, drawn(DeviceMemory)), step
    )
    assert advice.certainty == "possible"
    assert "profile_memory=True" in advice.because
    assert advice.evidence["peak_share"] is None


def test_it_is_silent_where_memory_is_short() -> None:
    assert recomputation(busy_pace(), facts(), AGAIN, NO_OPS, memory(0.75)) is None
    assert recomputation(busy_pace(), facts(), AGAIN, NO_OPS, memory(0.75), most_share=0.8) is not None


def test_it_is_silent_without_recomputation() -> None:
    other = drawn(StarvingPhase, {"phase": "backward", "starved_ns": 9 * MS, "device_ns": 40 * MS})
    assert recomputation(busy_pace(), facts(), other, NO_OPS, memory(0.2)) is None
    little = drawn(StarvingPhase, {"phase": "recomputation", "device_ns": MS // 10})
    assert recomputation(busy_pace(), facts(), little, NO_OPS, memory(0.2)) is None
