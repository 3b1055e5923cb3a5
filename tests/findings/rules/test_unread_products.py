from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.cut_products import CutProduct
from stepscope.analyses.unread_products import UnreadProduct
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.unread_products import unread_products

HEAD = {
    "step": 3,
    "user_frame": "rank.py(7): scores",
    "shape": "16 × 512 × 151936",
    "read_share": 0.25,
    "device_ns": 4 * MS,
    "device_share": 0.4,
    "backward_ns": 0,
    "elementwise_ns": 0,
    "cut_ns": 0,
    "zeros_ns": 0,
}

CUT = {
    "step": 3,
    "cut": "aten::select",
    "read_most": 0.2,
    "device_ns": 4 * MS,
    "device_share": 0.4,
    "backward_ns": 0,
    "elementwise_ns": 0,
    "cut_ns": 0,
    "zeros_ns": 0,
}


def found(**changed: Any) -> Advice | None:
    return unread_products(busy_pace(), drawn(UnreadProduct, HEAD | changed), drawn(CutProduct, CUT))


def test_the_other_rows_go() -> None:
    advice = assert_bounded(found(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.9 * 3.0 * MS, 3.0 * MS))
    assert "16 × 512 × 151936" in advice.because
    assert "25.0 %" in advice.because
    assert "logits_to_keep=n" in advice.fix
    assert [place.line for place in advice.locations] == [7]


def test_so_do_their_gradients_and_casts() -> None:
    more = {"device_ns": MS, "backward_ns": 2 * MS, "elementwise_ns": MS, "cut_ns": MS, "zeros_ns": MS // 2}
    advice = assert_bounded(found(**more), busy_pace())
    around = 0.75 * 1.5 * MS
    high = 0.75 * 3 * MS + around + (1 - 0.75 / 2) * MS
    assert advice.saving.device_ns == pytest.approx((0.9 * 0.75 * 3 * MS + around, high))
    assert "in the backward pass (2.00 ms)" in advice.because
    assert advice.claims == {Claim(Time.DEVICE, part) for part in (Part.MATMUL, Part.ELEMENTWISE, Part.FILLS)}


def test_the_gradient_of_a_cut_is_no_fault_by_itself() -> None:
    assert found(read_share=0.999, backward_ns=5 * MS, cut_ns=2 * MS, zeros_ns=MS) is None


def test_it_is_silent_where_it_is_little() -> None:
    assert found(device_ns=MS // 10) is None
    assert unread_products(busy_pace(), drawn(UnreadProduct), drawn(CutProduct)) is None


def unsized(**changed: Any) -> Advice | None:
    return unread_products(busy_pace(), drawn(UnreadProduct), drawn(CutProduct, CUT | changed))


def test_without_shapes_the_time_after_the_cut_tells() -> None:
    advice = assert_bounded(unsized(elementwise_ns=MS), busy_pace())
    assert advice.certainty == "possible"
    assert advice.saving.device_ns == pytest.approx((0.8 * (0.9 * 4 + 1) * MS, 5 * MS))
    assert "at most 20.0 % of it is read: what the step does with it afterwards" in advice.because
    assert advice.claims == {Claim(Time.DEVICE, part) for part in (Part.MATMUL, Part.ELEMENTWISE)}


def test_in_training_only_the_backward_pass_is_certain() -> None:
    more = {"device_ns": MS, "backward_ns": 2 * MS, "elementwise_ns": MS, "cut_ns": MS, "zeros_ns": MS // 2}
    advice = assert_bounded(unsized(**more), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.8 * (0.9 * 2 + 0.5) * MS, 5 * MS))
    assert "copied into zeros of the whole size" in advice.because


def test_without_shapes_it_is_silent_where_it_is_little() -> None:
    assert unsized(device_ns=MS // 10) is None
