from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.pairwise_cosines import pairwise_cosines

COSINES = {
    "name": "aten::cosine_similarity",
    "per_step": 1.0,
    "device_ns": 10 * MS,
    "user_frame": "match.py(8): loss",
}
QUOTIENT = {"name": "autograd::engine::evaluate_function: DivBackward0", "device_ns": 30 * MS}
PRODUCT = {"name": "autograd::engine::evaluate_function: MulBackward0", "device_ns": 5 * MS}


def test_gradients_of_quotients_go_too_and_those_of_products_may() -> None:
    advice = assert_bounded(
        pairwise_cosines(busy_pace(), drawn(StepOp, COSINES, QUOTIENT, PRODUCT)), busy_pace()
    )
    assert advice.saving.device_ns == pytest.approx((4 * MS, 4.5 * MS))
    assert "a @ b.T" in advice.fix
    assert [place.line for place in advice.locations] == [8]


def test_gradients_of_other_code_are_not_promised() -> None:
    advice = assert_bounded(
        pairwise_cosines(
            busy_pace(), drawn(StepOp, COSINES | {"device_ns": 5 * MS}, QUOTIENT | {"device_ns": 80 * MS})
        ),
        busy_pace(),
    )
    assert advice.saving.device_ns[0] == pytest.approx(4.5 * MS)


def test_cosines_of_rows_one_by_one_are_fine() -> None:
    little = COSINES | {"device_ns": 100_000}
    assert pairwise_cosines(busy_pace(), drawn(StepOp, little, QUOTIENT, PRODUCT)) is None
    assert pairwise_cosines(busy_pace(), drawn(StepOp, QUOTIENT, PRODUCT)) is None
