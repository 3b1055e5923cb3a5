from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.analyses.rooflines import Roofline
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings.rules.misaligned_matmuls import misaligned_matmuls

STEPS = drawn(Step, *[{"kernel_ns": 8 * MS}] * 10)
BF16 = (
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(cutlass_75_tensorop_…"
)
TF32 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_32x3_nn_align1>(…)"
EVEN = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(…)"
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(…)"
NO_SIZES = drawn(Precision, {"family": "matmul", "precision": "bf16"})
NO_ROOFS = drawn(Roofline)
OPS = drawn(StepOp, {"name": "aten::mm", "user_frame": "model.py(7): forward", "device_ns": 40 * MS})


def kernel(name: str, total_ns: float, family: str = "matmul") -> dict[str, object]:
    return {"name": name, "family": family, "total_ns": round(total_ns), "exclusive_ns": round(total_ns)}


def test_it_fires_by_the_names_of_kernels() -> None:
    step = busy_pace()
    kernels = drawn(Kernel, kernel(BF16, 40 * MS), kernel(EVEN, 30 * MS), kernel("copy", 10 * MS, "copy"))
    advice = assert_bounded(misaligned_matmuls(step, STEPS, kernels, NO_SIZES, NO_ROOFS, OPS), step)
    low, high = advice.saving.device_ns
    assert high == pytest.approx(4.0 * MS * 7 / 8)
    assert low == pytest.approx(4.0 * MS * (1 - 8**-0.5))
    assert advice.certainty == "likely"
    assert advice.evidence["misaligned_ns"] == 4 * MS
    assert [place.function for place in advice.locations] == ["forward"]


def test_single_tf32_numbers_are_four_bytes() -> None:
    step = busy_pace()
    kernels = drawn(Kernel, kernel(TF32, 80 * MS))
    advice = assert_bounded(misaligned_matmuls(step, STEPS, kernels, NO_SIZES, NO_ROOFS, OPS), step)
    low, high = advice.saving.device_ns
    assert low == pytest.approx(8.0 * MS * (1 - 4**-0.25))
    assert high == pytest.approx(8.0 * MS * (1 - 4**-0.75))
    assert advice.certainty == "possible"


def test_recorded_sizes_bound_it_and_are_named() -> None:
    step = busy_pace()
    kernels = drawn(Kernel, kernel(BF16, 40 * MS), kernel(EVEN, 40 * MS))
    sized = drawn(
        Precision, {"family": "matmul", "precision": "bf16", "misaligned_ns": 10 * MS, "total_ns": 80 * MS}
    )
    roofs = drawn(
        Roofline,
        {"family": "matmul", "op": "aten::mm", "shapes": "[8,64] [64,17]", "data_type": "bf16", "work_ns": 9},
        {
            "family": "matmul",
            "op": "aten::mm",
            "shapes": "[64,64] [64,8]",
            "data_type": "bf16",
            "work_ns": 99,
        },
        {
            "family": "matmul",
            "op": "aten::mm",
            "shapes": "[64,64] [64,3]",
            "data_type": "bf16",
            "work_ns": 99,
        },
        {"family": "matmul", "op": "aten::mm", "shapes": "unknown …", "data_type": "bf16", "work_ns": 99},
        {
            "family": "matmul",
            "op": "aten::mm",
            "shapes": "[8,64] [64,17]",
            "data_type": "fp32",
            "work_ns": 99,
        },
    )
    advice = assert_bounded(misaligned_matmuls(step, STEPS, kernels, sized, roofs, OPS), step)
    assert advice.saving.device_ns[1] == pytest.approx(1.0 * MS * 7 / 8)
    assert advice.certainty == "likely"
    assert advice.evidence["sizes"] == "mm [8,64] [64,17]"
    assert not advice.locations


def test_the_trace_outside_the_steps_does_not_count() -> None:
    step = busy_pace()
    kernels = drawn(Kernel, kernel(BF16, 160 * MS))
    advice = assert_bounded(misaligned_matmuls(step, STEPS, kernels, NO_SIZES, NO_ROOFS, OPS), step)
    assert advice.evidence["misaligned_ns"] == 8 * MS


def test_it_is_silent_with_even_sizes() -> None:
    kernels = drawn(Kernel, kernel(EVEN, 40 * MS), kernel(SIMT, 30 * MS), kernel("nvjet_tst", 10 * MS))
    assert misaligned_matmuls(busy_pace(), STEPS, kernels, NO_SIZES, NO_ROOFS, OPS) is None
    assert misaligned_matmuls(busy_pace(), STEPS, drawn(Kernel), NO_SIZES, NO_ROOFS, OPS) is None
    # cuBLAS took the kernel though all sizes are even.
    even = drawn(Precision, {"family": "matmul", "precision": "bf16", "misaligned_ns": 0})
    taken = drawn(Kernel, kernel(BF16, 80 * MS))
    assert misaligned_matmuls(busy_pace(), STEPS, taken, even, NO_ROOFS, OPS) is None


def test_it_is_silent_where_it_is_little_of_the_step() -> None:
    kernels = drawn(Kernel, kernel(BF16, 3 * MS), kernel(EVEN, 77 * MS))
    assert misaligned_matmuls(busy_pace(), STEPS, kernels, NO_SIZES, NO_ROOFS, OPS) is None
    assert (
        misaligned_matmuls(busy_pace(), STEPS, kernels, NO_SIZES, NO_ROOFS, OPS, least_share=0.02) is not None
    )
