from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.allocation_churn import allocation_churn


def op(name: str, per_step: float, late_ms: float, device_ms: float, **more: Any) -> dict[str, Any]:
    calls = round(10 * per_step)
    given = {
        "name": name, "phase": "forward", "user_frame": "agent.py(9): rollout", "calls": calls,
        "per_step": per_step, "starved_ns": round(10 * late_ms * MS), "launches": calls,
        "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip
    return given | more


PHASES = (
    {"phase": "forward", "launches": 1000, "starved_ns": 36 * MS},
    {"phase": "other", "starved_ns": 4 * MS},
)
ZEROS = op("aten::zeros", 20, 1.0, 0.2)
FILL = op("aten::zero_", 20, 0.5, 0.2, within="aten::zeros")
ADDS = op("aten::add", 80, 1.0, 0.2)
CLEARING = op("aten::zero_", 20, 0.4, 0.1, phase="optimizer")
ADDING = op("aten::add_", 20, 0.4, 0.1, phase="backward", within="torch::autograd::AccumulateGrad")


def found(*ops: dict[str, Any], passes: int | None = 1, **thresholds: Any) -> Advice | None:
    classes = drawn(StepClass, {"steps": 10, "backward_passes": passes})
    return allocation_churn(
        mean_step(), drawn(StarvingPhase, *PHASES), classes, drawn(StepOp, *ops), **thresholds
    )


def test_tensors_made_in_a_loop() -> None:
    advice = assert_bounded(found(ZEROS, FILL, ADDS), mean_step())
    # 1 ms late; with latency 1 * 5/4 by time, and 1 + 1 * 20/100 by launches. Python between ops: 0.4 ms for
    # 100 calls.
    assert advice.saving.starved_ns == pytest.approx((1.2 / 2 * MS, (1.25 + 0.08) * MS))
    assert advice.saving.device_ns == (0.1 * MS, 0.2 * MS)
    assert advice.evidence["making_calls_per_step"] == 20
    assert advice.claims == {Claim(Time.STARVED, Part.ALLOCATION), Claim(Time.DEVICE, Part.FILLS)}
    assert "zero_grad" not in advice.fix


def test_gradients_that_are_cleared_and_added_to() -> None:
    advice = assert_bounded(found(CLEARING, ADDING), mean_step())
    assert advice.saving.starved_ns == pytest.approx((1.0 * MS, 1.2 * MS))
    assert advice.saving.device_ns == (0.2 * MS, 0.2 * MS)
    assert advice.fix.startswith("optimizer.zero_grad(set_to_none=True)")
    assert Claim(Time.STARVED, Part.OPTIMIZER) in advice.claims


def test_additions_of_several_backward_passes_stay() -> None:
    advice = assert_bounded(found(CLEARING, ADDING, passes=4), mean_step())
    assert advice.evidence["clearing_calls_per_step"] == 20


def test_additions_without_fills_stay() -> None:
    assert found(ADDING) is None


@pytest.mark.parametrize(
    "ops",
    [
        (),
        (op("aten::empty", 200, 1.0, 0.0, within="aten::linear"),),
        (op("aten::ones_like", 200, 1.0, 0.0, phase="backward"),),
        (op("aten::zeros", 4, 1.0, 0.2),),
        (op("aten::zeros", 20, 0.1, 0.01),),
    ],
)
def test_it_is_silent(ops: tuple[dict[str, Any], ...]) -> None:
    assert found(*ops) is None


def test_the_threshold() -> None:
    assert found(ZEROS, least_share=0.2) is None
