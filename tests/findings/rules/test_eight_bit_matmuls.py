from __future__ import annotations

import dataclasses

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.eight_bit_matmuls import eight_bit_matmuls

LARGE = {"family": "matmul", "precision": "bf16", "calls": 100, "total_ns": 80 * MS}
OPS = drawn(StepOp)


def test_it_fires_and_promises_nothing_for_sure() -> None:
    step = busy_pace()
    advice = assert_bounded(eight_bit_matmuls(step, facts(), drawn(Precision, LARGE), OPS), step)
    low, high = advice.saving.device_ns
    assert low == 0
    assert high == pytest.approx(8.0 * MS * (1 - 989 / 1979))
    assert advice.certainty == "possible"
    assert "800 µs each" in advice.because


def test_it_is_silent_where_products_are_not_most_of_it() -> None:
    rows = drawn(Precision, {**LARGE, "total_ns": 40 * MS})
    assert eight_bit_matmuls(busy_pace(), facts(), rows, OPS) is None
    assert eight_bit_matmuls(busy_pace(), facts(), rows, OPS, least_share=0.3) is not None
    fp8 = drawn(Precision, {**LARGE, "precision": "fp8"})
    assert eight_bit_matmuls(busy_pace(), facts(), fp8, OPS) is None
    attention = drawn(Precision, {**LARGE, "family": "attention"})
    assert eight_bit_matmuls(busy_pace(), facts(), attention, OPS) is None


def test_it_is_silent_where_the_device_is_mostly_idle() -> None:
    step = mean_step(busy_ns=2.0 * MS, starved_ns=8.0 * MS)
    rows = drawn(Precision, {**LARGE, "calls": 10, "total_ns": 18 * MS})
    assert eight_bit_matmuls(step, facts(), rows, OPS) is None
    assert eight_bit_matmuls(step, facts(), rows, OPS, least_step_share=0.1) is not None


def test_it_is_silent_where_products_are_small() -> None:
    rows = drawn(Precision, {**LARGE, "calls": 2_000})
    assert eight_bit_matmuls(busy_pace(), facts(), rows, OPS) is None
    assert eight_bit_matmuls(busy_pace(), facts(), rows, OPS, least_call_ns=20_000) is not None


def test_it_is_silent_where_sizes_are_odd() -> None:
    rows = drawn(Precision, {**LARGE, "misaligned_ns": 30 * MS})
    assert eight_bit_matmuls(busy_pace(), facts(), rows, OPS) is None


def test_it_is_silent_where_the_device_has_no_8_bits() -> None:
    old = dataclasses.replace(H200, peak_flops={"bf16": 312e12})
    assert eight_bit_matmuls(busy_pace(), facts(devices=(old,)), drawn(Precision, LARGE), OPS) is None
    assert eight_bit_matmuls(busy_pace(), facts(devices=()), drawn(Precision, LARGE), OPS) is None
