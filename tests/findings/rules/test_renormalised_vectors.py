from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.renormalised_vectors import renormalised_vectors

BUSY = busy_pace(busy_ns=9.0 * MS)


def op(name: str, calls: int, device_ms: float) -> dict[str, Any]:
    """An operator in ten steps, with its GPU time in each."""
    return {
        "name": name,
        "phase": "forward",
        "user_frame": "search.py(9): search",
        "calls": 10 * calls,
        "per_step": float(calls),
        "launches": 10 * calls,
        "device_ns": round(10 * device_ms * MS),
    }


NORM, QUOTIENT = op("aten::linalg_vector_norm", 2, 1.0), op("aten::div", 3, 2.0)
PRODUCT, CHOICE = op("aten::mm", 1, 1.5), op("aten::topk", 1, 0.5)


def found(*ops: dict[str, Any], backward_passes: int = 0) -> Advice | None:
    classes = drawn(StepClass, {"step_class": 0, "steps": 10, "backward_passes": backward_passes})
    return renormalised_vectors(BUSY, drawn(StepOp, *ops), classes)


def test_norms_and_quotients_go() -> None:
    advice = assert_bounded(found(NORM, QUOTIENT, PRODUCT, CHOICE), BUSY)
    assert advice.saving.device_ns == pytest.approx((0.8 * 3 * MS, 3 * MS))
    assert "2 norms a step and the quotients by them take 3.00 ms of GPU time" in advice.because
    assert [str(place) for place in advice.locations] == ["search.py:9 search"]


def test_small_inputs_other_quotients_training_and_no_search_are_none() -> None:
    assert found(NORM, QUOTIENT, op("aten::mm", 1, 7.0), CHOICE) is None, "the product is what takes time"
    assert found(NORM, op("aten::div", 5, 2.0), PRODUCT, CHOICE) is None
    assert found(NORM, QUOTIENT, PRODUCT) is None
    assert found(NORM, QUOTIENT, CHOICE) is None
    assert found(NORM, QUOTIENT, PRODUCT, CHOICE, backward_passes=1) is None
