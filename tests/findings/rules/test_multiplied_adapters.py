from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.multiplied_adapters import MultipliedAdapters
from stepscope.findings import Advice
from stepscope.findings.rules.multiplied_adapters import multiplied_adapters

STEP = busy_pace()
# In ten steps: 2 ms of a step forward and back, and 3 ms for gradients of weights; beside their layers 1 ms.
LORA = {
    "user_frame": "train.py(7): forward",
    "calls": 320,
    "rank": 16,
    "device_ns": 12 * MS,
    "backward_ns": 8 * MS,
    "layer_backward_ns": 60 * MS,
    "beside_ns": 10 * MS,
}


def found(**changed: Any) -> Advice | None:
    return multiplied_adapters(STEP, drawn(MultipliedAdapters, LORA | changed))


def test_what_the_large_matrices_take_goes_but_for_the_thin_ones() -> None:
    advice = assert_bounded(found(), STEP)
    assert advice.saving.device_ns == pytest.approx((5 * MS - 1.3 * MS, 5 * MS - 0.5 * MS))
    assert "Adapters of low rank (16)" in advice.because
    assert "32 times a step; their gradients" in advice.because
    assert "beside their layers they would take 1.00 ms" in advice.because
    assert [place.line for place in advice.locations] == [7]


def test_without_shapes_the_rest_is_not_known() -> None:
    advice = assert_bounded(found(rank=None, beside_ns=None), STEP)
    assert advice.saving.device_ns == pytest.approx((0.35 * 5 * MS, 0.85 * 5 * MS))
    assert "beside" not in advice.because


def test_it_is_silent() -> None:
    assert multiplied_adapters(STEP, drawn(MultipliedAdapters)) is None
    assert found(device_ns=MS, backward_ns=0, layer_backward_ns=0) is None
    assert found(beside_ns=110 * MS) is None, "inputs are far larger than the weights"
