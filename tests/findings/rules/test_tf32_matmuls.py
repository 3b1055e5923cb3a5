from __future__ import annotations

import dataclasses

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import NotKnown
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.tf32_matmuls import tf32_matmuls

TF32 = {"family": "matmul", "precision": "tf32", "calls": 100, "total_ns": 60 * MS}
OPS = drawn(StepOp, {"name": "aten::addmm", "user_frame": "model.py(7): forward", "device_ns": 60 * MS})


def test_it_fires_and_promises_about_a_half() -> None:
    step = busy_pace()
    advice = assert_bounded(tf32_matmuls(step, facts(), drawn(Precision, TF32), OPS), step)
    low, high = advice.saving.device_ns
    assert high == pytest.approx(6.0 * MS * (1 - 0.8 * 494 / 989))
    assert low == pytest.approx(6.0 * MS * (1 - (494 / 989) ** 0.5))
    assert advice.title == "Matrix products run in TF32, not in bf16"
    assert "torch.autocast" in advice.fix
    assert advice.evidence["tf32_calls_per_step"] == 10
    assert advice.locations[0].function == "forward"


def test_convolutions_and_attention_count() -> None:
    step = busy_pace()
    rows = drawn(
        Precision, {**TF32, "family": "attention", "total_ns": MS}, {**TF32, "family": "convolution"}
    )
    advice = assert_bounded(tf32_matmuls(step, facts(), rows, OPS), step)
    assert advice.title.startswith("Convolutions run")
    assert advice.claims == {Claim(Time.DEVICE, Part.CONVOLUTION), Claim(Time.DEVICE, Part.ATTENTION)}
    assert "convolutions and attention in TF32" in advice.because


def test_attention_in_fp32_comes_along() -> None:
    step = busy_pace()
    attention = {"family": "attention", "precision": "fp32", "calls": 40, "total_ns": 20 * MS}
    advice = assert_bounded(tf32_matmuls(step, facts(), drawn(Precision, TF32, attention), OPS), step)
    low, high = advice.saving.device_ns
    assert high == pytest.approx(6.0 * MS * (1 - 0.8 * 494 / 989) + 2.0 * MS * (1 - 67 / 989))
    assert low == pytest.approx(6.0 * MS * (1 - (494 / 989) ** 0.5) + 2.0 * MS * (1 - (67 / 989) ** 0.5))
    assert advice.claims == {Claim(Time.DEVICE, Part.MATMUL), Claim(Time.DEVICE, Part.ATTENTION)}
    assert "Attention takes another 2.00 ms in fp32" in advice.because
    more = {"family": "matmul", "precision": "fp32", "calls": 40, "total_ns": 70 * MS}
    advice = assert_bounded(tf32_matmuls(step, facts(), drawn(Precision, TF32, attention, more), OPS), step)
    assert advice.claims == {Claim(Time.DEVICE, Part.MATMUL)}


def test_it_is_silent_without_tf32_and_where_it_is_little() -> None:
    assert tf32_matmuls(busy_pace(), facts(), drawn(Precision), OPS) is None
    assert tf32_matmuls(busy_pace(), facts(), drawn(Precision, {**TF32, "precision": "bf16"}), OPS) is None
    little = drawn(Precision, {**TF32, "total_ns": 4 * MS})
    assert tf32_matmuls(busy_pace(), facts(), little, OPS) is None
    assert tf32_matmuls(busy_pace(), facts(), little, OPS, least_share=0.01) is not None


def test_it_is_silent_where_kernels_are_short_and_the_host_sets_the_pace() -> None:
    step = mean_step(busy_ns=0.5 * MS, starved_ns=9.5 * MS, host_path_share=1.0)
    assert tf32_matmuls(step, facts(), drawn(Precision, {**TF32, "calls": 400, "total_ns": MS}), OPS) is None
    long = drawn(Precision, {**TF32, "calls": 80, "total_ns": MS})
    assert tf32_matmuls(step, facts(), long, OPS) is not None
    assert tf32_matmuls(step, facts(), long, OPS, least_gain=0.5) is None


def test_it_is_silent_where_16_bits_are_no_faster() -> None:
    slow = dataclasses.replace(H200, peak_flops={"tf32": 100e12, "bf16": 100e12})
    assert tf32_matmuls(busy_pace(), facts(devices=(slow,)), drawn(Precision, TF32), OPS) is None


def test_an_unknown_device_is_said() -> None:
    with pytest.raises(NotKnown, match="not recognised"):
        tf32_matmuls(busy_pace(), facts(devices=()), drawn(Precision, TF32), OPS)
