from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.depthwise_convolutions import depthwise_convolutions

STEP = busy_pace()
NAME = "void at::native::(anonymous namespace)::conv_depthwise2d_{}_kernel<0, 1, {}, int>(Accessor)"


def kernel(what: str, kind: str = "c10::BFloat16", mean_us: int = 1_000) -> dict[str, Any]:
    """One of 1 ms a step."""
    figures = {"family": "convolution", "calls": 10_000 // mean_us, "exclusive_ns": 10 * MS}
    return {"name": NAME.format(what, kind), "mean_ns": mean_us * 1_000, **figures}


def found(*kernels: dict[str, Any]) -> Advice | None:
    family = {"family": "convolution", "exclusive_ns": 10 * MS * len(kernels)}
    op = {"name": "aten::_conv_depthwise2d", "calls": 10, "launches": 10}
    return depthwise_convolutions(
        STEP, drawn(Kernel, *kernels), drawn(KernelFamily, family), drawn(StepOp, op)
    )


def test_torchs_own_kernels() -> None:
    advice = assert_bounded(found(kernel("forward"), kernel("backward"), kernel("grad_weight")), STEP)
    assert advice.saving.device_ns == pytest.approx((0.35 * 3 * MS, 0.75 * 3 * MS))
    assert "3 kernels a step of depthwise convolutions take 3.00 ms" in advice.because
    assert "channels_last" in advice.fix


def test_short_ones_and_fp32_may_gain_nothing() -> None:
    short = assert_bounded(found(kernel("forward", mean_us=100)), STEP)
    assert short.saving.device_ns == pytest.approx((0.0, 0.75 * MS))
    wide = assert_bounded(found(kernel("forward", "float")), STEP)
    assert wide.saving.device_ns == pytest.approx((0.0, 0.7 * MS))
    assert (short.certainty, wide.certainty) == ("likely", "possible")


def test_it_is_silent() -> None:
    assert found(kernel("forward", mean_us=20)) is None
    assert found({"name": "cudnn::cnn::dgrad2d_grouped_direct_kernel", "mean_ns": MS, "calls": 10}) is None
