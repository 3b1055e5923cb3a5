from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.findings import Advice
from stepscope.findings.facts import Facts
from stepscope.findings.rules.fp8_casts import fp8_casts

STEP = busy_pace(busy_ns=10.0 * MS)
CAST = "void at::native::vectorized_elementwise_kernel<4, at::native::float8_copy_kernel_cuda(at::Tensor)>"
GAIN = 1979 / 989 - 1


def found(share: float, *, products_ms: int = 40, told: Facts | None = None, **kernel: Any) -> Advice | None:
    """Ten steps of 10 ms, whose products take 4 ms."""
    rows = drawn(
        Precision, {"family": "matmul", "precision": "fp8", "calls": 99, "total_ns": products_ms * MS}
    )
    casts = drawn(Kernel, {"name": CAST, "family": "elementwise", "share": share, "total_ns": 1, **kernel})
    return fp8_casts(STEP, told or facts(), rows, casts)


def test_casts_that_take_more_than_fp8_gains() -> None:
    advice = assert_bounded(found(0.5), STEP)
    assert advice.saving.device_ns == pytest.approx((5.0 * MS - 4.0 * MS * GAIN, 5.0 * MS))
    assert "take 5.00 ms of a step" in advice.because


def test_casts_that_take_part_of_it_may_gain_by_fusing() -> None:
    advice = assert_bounded(found(0.3), STEP)
    assert advice.saving.device_ns == pytest.approx((0.0, 3.0 * MS))


def test_it_is_silent() -> None:
    assert found(0.1) is None, "fp8 gains far more"
    assert found(0.02, products_ms=1) is None, "a trifle"
    assert found(0.5, products_ms=0) is None, "fp8 compresses something else"
    assert found(0.5, name="elementwise_kernel<bf16>") is None
    assert found(0.5, family="matmul") is None
    assert found(0.5, name="rms_norm_static_fp8_quant_kernel") is None, "the norm is needed anyway"
    ampere = dataclasses.replace(H200, peak_flops={"bf16": 312e12})
    assert found(0.5, told=facts(devices=(ampere,))) is None


@pytest.mark.parametrize(
    "name", ["triton_red_fused_abs_amax_0", "vllm::scaled_fp8_quant_kernel", "cast_e5m2"]
)
def test_names_of_casts(name: str) -> None:
    assert_bounded(found(0.5, name=name, family="reduction"), STEP)
