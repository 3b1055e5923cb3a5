from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.diagonal_products import DiagonalProducts
from stepscope.findings import Advice
from stepscope.findings.rules.diagonal_products import diagonal_products

ADJACENCY = {
    "step": 3,
    "user_frame": "graph.py(5): normalised",
    "size": 6144,
    "products": 2,
    "made_ns": MS // 20,
    "products_ns": 2 * MS,
    "backward_ns": 2 * MS,
}


def found(**changed: Any) -> Advice | None:
    return diagonal_products(busy_pace(), drawn(DiagonalProducts, ADJACENCY | changed))


def test_passes_over_the_matrix_may_stay() -> None:
    advice = assert_bounded(found(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((3.75 * MS, 4.05 * MS))
    assert "a matrix of 6,144 × 6,144 from a vector" in advice.because
    assert "2 products a step with it take 2.00 ms, gradients 2.00 ms" in advice.because
    assert "left[:, None] * matrix" in advice.fix
    assert [place.line for place in advice.locations] == [5]


def test_without_gradients_and_at_least_half() -> None:
    advice = assert_bounded(found(backward_ns=0), busy_pace())
    assert advice.saving.device_ns == pytest.approx((1.95 * MS, 2.05 * MS))
    slow = assert_bounded(found(made_ns=MS), busy_pace())
    assert slow.saving.device_ns == pytest.approx((2.5 * MS, 5 * MS))


def test_short_products_are_nothing() -> None:
    assert found(products_ns=MS // 10, backward_ns=0) is None
