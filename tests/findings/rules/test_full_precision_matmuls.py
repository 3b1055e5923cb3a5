from __future__ import annotations

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import NotKnown
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import DeviceFacts
from stepscope.findings.rules.full_precision_matmuls import full_precision_matmuls

FP32 = {"family": "matmul", "precision": "fp32", "calls": 200, "total_ns": 67 * MS}
OPS = drawn(
    StepOp,
    {"name": "aten::mm", "user_frame": "model.py(7): forward", "device_ns": 50 * MS},
    {"name": "aten::bmm", "within": "aten::mm", "user_frame": "model.py(7): forward", "device_ns": 9 * MS},
    {"name": "aten::add", "user_frame": "train.py(9): step", "device_ns": 70 * MS},
)
NO_OPS = drawn(StepOp)
NOTHING_ELSE = drawn(KernelFamily)


def test_it_fires_with_the_ratio_of_the_peaks() -> None:
    step = busy_pace()
    advice = assert_bounded(
        full_precision_matmuls(step, facts(), drawn(Precision, FP32), NOTHING_ELSE, OPS), step
    )
    low, high = advice.saving.device_ns
    assert high == pytest.approx(6.7 * MS * (1 - 67 / 989))
    assert low == pytest.approx(6.7 * MS * (1 - (67 / 989) ** 0.5))
    assert advice.title == "Matrix products run in full precision"
    assert advice.claims == {Claim(Time.DEVICE, Part.MATMUL)}
    assert advice.certainty == "likely"
    assert 'set_float32_matmul_precision("high")' in advice.fix
    assert "bfloat16" in advice.fix
    assert [str(place) for place in advice.locations] == ["model.py:7 forward"]
    assert advice.locations[0].note == "5.00 ms of GPU time a step"


def test_products_of_attention_that_the_compiler_took_apart_are_left_out() -> None:
    step = busy_pace()
    apart = {"name": "triton_red_fused__safe_softmax_add_where_4", "device_ns": 40 * MS}
    bmm, mm = ({"name": f"aten::{name}", "device_ns": ns * MS} for name, ns in (("bmm", 64), ("mm", 3)))
    products = drawn(Precision, FP32)
    attention = drawn(StepOp, apart, bmm, mm)
    assert full_precision_matmuls(step, facts(), products, NOTHING_ELSE, attention) is None
    assert full_precision_matmuls(step, facts(), products, NOTHING_ELSE, drawn(StepOp, bmm, mm))


def test_what_moves_results_moves_half_the_bytes_at_most() -> None:
    step = busy_pace()
    others = drawn(
        KernelFamily,
        {"family": "elementwise", "exclusive_ns": 10 * MS},
        {"family": "normalisation", "exclusive_ns": 4 * MS},
        {"family": "optimizer", "exclusive_ns": 9 * MS},
    )
    alone = full_precision_matmuls(step, facts(), drawn(Precision, FP32), NOTHING_ELSE, NO_OPS)
    advice = assert_bounded(
        full_precision_matmuls(step, facts(), drawn(Precision, FP32), others, NO_OPS), step
    )
    assert alone is not None
    assert advice.saving.device_ns[0] == alone.saving.device_ns[0]
    assert advice.saving.device_ns[1] - alone.saving.device_ns[1] == pytest.approx(0.7 * MS)
    narrow = {**FP32, "precision": "bf16", "total_ns": 10 * MS}
    mixed = full_precision_matmuls(step, facts(), drawn(Precision, FP32, narrow), others, NO_OPS)
    assert mixed is not None
    assert mixed.saving.device_ns == alone.saving.device_ns, "the others may have 16 bits already"


def test_conversions_beside_16_bits_go_unless_autocast_makes_them() -> None:
    step = busy_pace()
    mixed = drawn(
        Precision, {**FP32, "total_ns": 30 * MS}, {**FP32, "precision": "bf16", "total_ns": 10 * MS}
    )
    copied = {"name": "aten::_to_copy", "within": "aten::to", "device_ns": 20 * MS}
    in_model = {"name": "aten::to", "device_ns": 20 * MS}
    by_autocast = {**in_model, "within": "aten::linear"}
    alone, asked, cast = (
        assert_bounded(full_precision_matmuls(step, facts(), mixed, NOTHING_ELSE, drawn(StepOp, *ops)), step)
        for ops in ((), (in_model, copied), (by_autocast, copied))
    )
    assert asked.saving.device_ns[0] == alone.saving.device_ns[0]
    assert asked.saving.device_ns[1] - alone.saving.device_ns[1] == pytest.approx(2 * MS)
    assert "conversions between data types take another 2.00 ms" in asked.because
    assert "autocast_adapter_dtype=False" in asked.fix
    assert cast.saving == alone.saving
    assert "autocast_adapter_dtype" not in cast.fix


def test_no_kernel_gets_shorter_than_kernels_are() -> None:
    step = busy_pace()
    many = drawn(Precision, {**FP32, "calls": 10_000})
    advice = assert_bounded(full_precision_matmuls(step, facts(), many, NOTHING_ELSE, NO_OPS), step)
    low, high = advice.saving.device_ns
    assert low == pytest.approx(6.7 * MS - 6.0 * MS)
    assert high == pytest.approx(6.7 * MS - 2.0 * MS)


def test_convolutions_are_told_to_cudnn() -> None:
    step = busy_pace()
    found = drawn(Precision, {**FP32, "family": "convolution"})
    advice = assert_bounded(full_precision_matmuls(step, facts(), found, NOTHING_ELSE, NO_OPS), step)
    assert "torch.backends.cudnn.allow_tf32 = True" in advice.fix
    assert advice.claims == {Claim(Time.DEVICE, Part.CONVOLUTION)}


def test_what_is_left_beside_tf32_is_said_where_nothing_runs_in_16_bits() -> None:
    step = busy_pace()
    little = {**FP32, "calls": 30, "total_ns": round(0.5 * MS)}
    tf32 = {"family": "convolution", "precision": "tf32", "calls": 100, "total_ns": 40 * MS}
    advice = assert_bounded(
        full_precision_matmuls(step, facts(), drawn(Precision, little, tf32), NOTHING_ELSE, NO_OPS), step
    )
    assert "Another 4.00 ms goes to convolutions in TF32. Nothing runs in 16 bits." in advice.because
    assert advice.claims == {Claim(Time.DEVICE, Part.MATMUL)}
    half = {"family": "matmul", "precision": "bf16", "calls": 100, "total_ns": 40 * MS}
    assert (
        full_precision_matmuls(step, facts(), drawn(Precision, little, tf32, half), NOTHING_ELSE, NO_OPS)
        is None
    )


def test_attention_in_fp32_is_a_matter_of_tf32_where_products_are() -> None:
    step = busy_pace()
    attention = {"family": "attention", "precision": "fp32", "calls": 40, "total_ns": 20 * MS}
    advice = assert_bounded(
        full_precision_matmuls(step, facts(), drawn(Precision, attention), NOTHING_ELSE, NO_OPS), step
    )
    assert advice.title == "Attention runs in full precision"
    tf32 = {"family": "matmul", "precision": "tf32", "calls": 100, "total_ns": 40 * MS}
    assert (
        full_precision_matmuls(step, facts(), drawn(Precision, attention, tf32), NOTHING_ELSE, NO_OPS) is None
    )


def test_fp64_is_for_the_rule_about_float64() -> None:
    found = drawn(Precision, {**FP32, "precision": "fp64"})
    assert full_precision_matmuls(busy_pace(), facts(), found, NOTHING_ELSE, NO_OPS) is None


def test_old_devices_have_fp16_alone() -> None:
    step = busy_pace()
    told = facts(devices=(_like_h200(peak_flops={"fp32": 15.7e12, "fp16": 125e12}),))
    advice = assert_bounded(
        full_precision_matmuls(step, told, drawn(Precision, FP32), NOTHING_ELSE, NO_OPS), step
    )
    assert "float16" in advice.fix
    assert "GradScaler" in advice.fix
    assert "TF32" not in advice.fix


def test_it_is_silent_without_fp32_and_where_it_is_little() -> None:
    assert full_precision_matmuls(busy_pace(), facts(), drawn(Precision), NOTHING_ELSE, NO_OPS) is None
    half = drawn(Precision, {**FP32, "precision": "bf16"})
    assert full_precision_matmuls(busy_pace(), facts(), half, NOTHING_ELSE, NO_OPS) is None
    little = drawn(Precision, {**FP32, "total_ns": 4 * MS})
    assert full_precision_matmuls(busy_pace(), facts(), little, NOTHING_ELSE, NO_OPS) is None
    assert (
        full_precision_matmuls(busy_pace(), facts(), little, NOTHING_ELSE, NO_OPS, least_share=0.01)
        is not None
    )


def test_it_is_silent_where_the_host_sets_the_pace_and_kernels_are_short() -> None:
    step = mean_step(busy_ns=0.5 * MS, starved_ns=9.5 * MS, host_path_share=1.0)
    short = drawn(Precision, {**FP32, "calls": 400, "total_ns": 2 * MS})
    assert full_precision_matmuls(step, facts(), short, NOTHING_ELSE, NO_OPS) is None
    assert full_precision_matmuls(step, facts(), short, NOTHING_ELSE, NO_OPS, least_gain=0.0) is not None
    long = drawn(Precision, {**FP32, "calls": 100, "total_ns": 2 * MS})
    assert full_precision_matmuls(step, facts(), long, NOTHING_ELSE, NO_OPS) is not None


def test_an_unknown_device_is_said() -> None:
    for devices in ((), (_like_h200(peak_flops={}),)):
        with pytest.raises(NotKnown, match="not recognised"):
            full_precision_matmuls(
                busy_pace(), facts(devices=devices), drawn(Precision, FP32), NOTHING_ELSE, NO_OPS
            )


def _like_h200(**told: object) -> DeviceFacts:
    import dataclasses

    return dataclasses.replace(H200, **told)  # type: ignore[arg-type]
