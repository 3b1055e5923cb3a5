from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.growing_joins import GrowingJoins
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.growing_tensors import growing_tensors

STEP = busy_pace()
JOINS = [{"step": step, "joins": 12, "device_ns": 2 * MS, "last_ns": MS // 4} for step in range(10)]
OP = {"name": "aten::cat", "per_step": 12.0, "device_ns": 20 * MS, "user_frame": "eval.py(7): evaluate"}


def advised(joins: list[dict[str, int]]) -> Advice | None:
    return growing_tensors(STEP, drawn(GrowingJoins, *joins), drawn(StepOp, OP))


def test_all_copies_but_the_last_can_go() -> None:
    advice = assert_bounded(advised(JOINS), STEP)
    assert advice.saving.device_ns == pytest.approx((1.75 * MS, 2.0 * MS))
    assert "torch.cat runs 12 times a step" in advice.because
    assert str(advice.locations[0]) == "eval.py:7 evaluate"
    assert "torch.cat(parts)" in advice.fix


def test_small_ones_and_none_are_no_finding() -> None:
    assert advised([]) is None
    assert advised([{**one, "device_ns": MS // 10, "last_ns": MS // 50} for one in JOINS]) is None
