from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.anomaly_mode import anomaly_mode

NODE = "autograd::engine::evaluate_function: MulBackward0"


def op(name: str, host_ns: int, device_ns: int = 0, within: str | None = NODE) -> dict[str, Any]:
    return {"name": name, "phase": "backward", "within": within, "calls": 20, "host_ns": host_ns,
            "device_ns": device_ns, "launches": 20}  # fmt: skip


CHECKS = (op("aten::isnan", 3 * MS, MS), op("aten::_is_any_true", 4 * MS, MS), op("aten::item", 3 * MS))
MUL = op("MulBackward0", 1 * MS)
FORWARD = {"phase": "forward", "starved_ns": 21 * MS, "launches": 20}


def advised(*ops: dict[str, Any], **thresholds: float) -> Advice | None:
    return anomaly_mode(mean_step(), drawn(StepOp, *ops), drawn(StarvingPhase, FORWARD), **thresholds)


def test_it_fires_on_checks_after_every_node() -> None:
    advice = assert_bounded(advised(*CHECKS, MUL), mean_step())
    # Checks take 1 ms a step; stacks 2 ms: forward waits 2.1 ms and would take 0.1 ms as backward's nodes do.
    assert advice.saving.starved_ns == (3.0 * MS, 3.0 * MS)
    assert advice.saving.device_ns == (0.0, 0.2 * MS)
    # At the most forward's 2.1 ms unstretched instead of 0.8 of 2 ms, and the rest of the device's work.
    assert advice.saving.waited_ns == pytest.approx((0.0, 0.5 * MS + 4.8 * MS))
    assert advice.evidence["checks_per_step"] == 2
    assert "set_detect_anomaly(False)" in advice.fix


def test_it_is_silent_without_the_pattern() -> None:
    assert advised(MUL) is None
    assert advised(CHECKS[0], MUL) is None
    assert advised(*({**check, "within": None} for check in CHECKS)) is None
    assert advised(*CHECKS, least_per_step=3) is None
