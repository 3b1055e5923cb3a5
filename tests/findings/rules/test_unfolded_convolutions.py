from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.unfolded_convolutions import unfolded_convolutions

STEP = busy_pace()
UNFOLD = {"name": "aten::im2col", "phase": "forward", "calls": 70, "device_ns": 10 * MS}
FOLD = {"name": "aten::col2im", "phase": "backward", "calls": 60, "device_ns": 20 * MS}
COPY = {"name": "aten::copy_", "phase": "forward", "calls": 200, "device_ns": 25 * MS}


def found(*ops: dict[str, Any]) -> Advice | None:
    return unfolded_convolutions(STEP, drawn(StepOp, *ops))


def test_patches_that_are_written_out() -> None:
    advice = assert_bounded(found(UNFOLD, FOLD, COPY), STEP)
    assert advice.saving.device_ns == pytest.approx((3 * MS, 5.5 * MS))
    assert "7 calls a step of F.unfold write each patch" in advice.because
    assert "F.conv2d" in advice.fix


def test_it_is_silent() -> None:
    assert found(COPY) is None
    assert found(UNFOLD | {"device_ns": 3 * MS}, COPY) is None, "little time"
