from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.written_pairs import WrittenPairs
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.written_pairs import written_pairs

SCORES = {
    "step": 3,
    "user_frame": "graph.py(7): scores",
    "told_by": "shapes",
    "shape": "32 × 160 × 160 × 256",
    "out_width": 8,
    "times": 160.0,
    "repeated_share": 1.0,
    "calls": 3,
    "spread_ns": MS,
    "joined_ns": MS,
    "product_ns": MS // 2,
    "copies_backward_ns": MS,
    "product_backward_ns": MS,
    "stays_least_ns": 0,
    "stays_most_ns": MS // 2,
    "host_share": 0.1,
}


def found(**changed: Any) -> Advice | None:
    return written_pairs(busy_pace(), drawn(WrittenPairs, SCORES | changed))


def test_copies_and_the_layer_go_and_sums_may_stay() -> None:
    advice = assert_bounded(found(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((4 * MS, 4.5 * MS))
    assert "Rows are repeated 160 times and joined to 32 × 160 × 160 × 256" in advice.because
    assert "8 numbers a row" in advice.because
    assert "(3 joins a step) take 2.00 ms, their gradients 1.00 ms" in advice.because
    assert "the layer with its gradients 1.50 ms" in advice.because
    assert advice.certainty == "likely"
    assert [place.line for place in advice.locations] == [7]
    assert advice.claims == {Claim(Time.DEVICE, Part.COPY), Claim(Time.DEVICE, Part.MATMUL)}


def test_the_fix_splits_the_layer() -> None:
    advice = found()
    assert advice
    assert "layer.weight.split(width, dim=1)" in advice.fix
    assert "F.linear(x, left, layer.bias)[:, :, None] + F.linear(x, right)[:, None]" in advice.fix
    assert "[source]" not in advice.fix


def test_edges_are_gathered_after_the_layer() -> None:
    advice = assert_bounded(found(gathered=True, stays_least_ns=MS, stays_most_ns=2 * MS), busy_pace())
    assert advice.saving.device_ns == pytest.approx((2.5 * MS, 3.5 * MS))
    assert "[source] + F.linear(x, right)[target]" in advice.fix
    assert "[:, :, None]" not in advice.fix
    assert Claim(Time.DEVICE, Part.INDEXING) in advice.claims


def test_what_is_not_repeated_keeps_its_part_of_the_layer() -> None:
    advice = found(repeated_share=0.8)
    assert advice
    assert "80.0 % of each joined row is repeated" in advice.because
    assert "left, right, rest" in advice.fix
    assert "F.linear(others_of_pairs, rest)" in advice.fix


UNSIZED = {"shape": None, "out_width": None, "times": None, "repeated_share": None, "user_frame": None}


def test_without_shapes_times_tell() -> None:
    advice = assert_bounded(found(told_by="times", **UNSIZED), busy_pace())
    assert advice.saving.device_ns == pytest.approx((4 * MS, 4.5 * MS))
    assert (advice.certainty, advice.locations) == ("likely", ())


def test_the_order_of_operators_alone_promises_nothing() -> None:
    inference = {"copies_backward_ns": 0, "product_backward_ns": 0, "spread_ns": 0}
    advice = assert_bounded(found(told_by="order", **UNSIZED, **inference), busy_pace())
    assert advice.certainty == "possible"
    assert advice.saving.device_ns == pytest.approx((0, 1.5 * MS))
    assert "gradients" not in advice.because
    assert "record_shapes=True" in advice.because


def test_it_promises_no_more_than_the_gpu_works() -> None:
    assert_bounded(found(spread_ns=90 * MS), busy_pace())


def test_it_is_silent_where_it_is_little() -> None:
    little = {"spread_ns": 0, "joined_ns": MS // 5, "copies_backward_ns": 0}
    assert found(**little) is None, "the copies are cheap, however long the layer takes"
    assert found(stays_least_ns=4.4 * MS, stays_most_ns=4.5 * MS) is None
    assert written_pairs(busy_pace(), drawn(WrittenPairs)) is None
