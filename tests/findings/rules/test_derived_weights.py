from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.derived_weights import derived_weights

# The host alone takes the whole step of 10 ms, the GPU 1 ms of it.
STEP = mean_step(
    busy_ns=1.0 * MS, starved_ns=8.0 * MS, latency_ns=1.0 * MS, waiting_ns=0.0, host_path_share=1.0
)
NORMS = {"name": "aten::_weight_norm", "calls": 780, "host_ns": 12 * MS, "device_ns": 2 * MS, "launches": 780}
CONVOLUTIONS = {"name": "aten::conv1d", "calls": 780, "host_ns": 48 * MS, "launches": 780}
INSIDE = {"name": "aten::_weight_norm_interface", "within": "aten::_weight_norm", "host_ns": 10 * MS}


def found(*ops: dict[str, Any], backward_passes: int = 0) -> Advice | None:
    classes = drawn(StepClass, {"steps": 10, "backward_passes": backward_passes, "optimizer": False})
    return derived_weights(STEP, drawn(StepOp, *ops), classes)


def test_weights_that_never_change() -> None:
    advice = assert_bounded(found(NORMS, CONVOLUTIONS, INSIDE), STEP)
    gain = STEP.gain(advice.saving)
    # A fifth of the host's time in operators: 85 % of it at least, half as much again at the most.
    assert (gain.low_share, gain.high_share) == pytest.approx((0.17, 0.3), abs=0.01)
    assert "computes 78 weights a step" in advice.because
    assert "remove_parametrizations" in advice.fix


def test_it_is_silent() -> None:
    assert found(CONVOLUTIONS) is None
    assert found(NORMS, CONVOLUTIONS, backward_passes=1) is None, "training needs them"
    assert found({**NORMS, "host_ns": MS // 2, "device_ns": 0}, CONVOLUTIONS) is None, "next to nothing"
