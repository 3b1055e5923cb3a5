from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.layout_conversions import layout_conversions

TURNING = "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true>"


def kernel(name: str, time_ms: float, family: str = "copy") -> dict[str, Any]:
    total = round(10 * time_ms * MS)
    return {"name": name, "family": family, "calls": 100, "total_ns": total, "exclusive_ns": total}


CONVOLUTION = kernel("sm90_xmma_fprop", 6.0, "convolution")


def copying(name: str, device_ms: float) -> dict[str, Any]:
    return {
        "name": name, "phase": "forward", "user_frame": "net.py(4): forward", "calls": 960, "per_step": 96.0,
        "launches": 960, "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip


def found(
    *kernels: dict[str, Any], ops: Any = (), step: MeanStep | None = None, **more: Any
) -> Advice | None:
    families = drawn(KernelFamily, {"family": "convolution", "total_ns": 60 * MS})
    step = step or busy_pace()
    return layout_conversions(step, drawn(Kernel, *kernels), families, drawn(StepOp, *ops), **more)


@pytest.mark.parametrize("name", [TURNING, "nhwcToNchwKernel", "batched_transpose_16x64_pack_1x4_half"])
def test_kernels_that_turn_tensors(name: str) -> None:
    convolution = copying("aten::conv2d", 6.0) | {"calls": 40, "per_step": 4.0}
    advice = assert_bounded(found(CONVOLUTION, kernel(name, 1.0), ops=[convolution]), busy_pace())
    assert advice.saving.device_ns == (0.75 * MS, 1.0 * MS)
    assert advice.evidence["conversions_per_step"] == 10
    assert "channels_last" in advice.fix
    assert [(place.function, place.note) for place in advice.locations] == [
        ("forward", "4 convolutions a step")
    ]


def test_where_most_convolutions_turn_nothing_the_layout_is_right() -> None:
    forward = copying("aten::conv2d", 6.0) | {"calls": 60, "per_step": 6.0}
    backward = copying("aten::convolution_backward", 6.0) | {"calls": 60, "phase": "backward"}
    # 10 such kernels a step: for 6 convolutions more than enough, for 12 too few.
    advice = assert_bounded(found(CONVOLUTION, kernel(TURNING, 1.0), ops=[forward]), busy_pace())
    assert (advice.saving.device_ns[0], advice.certainty) == (0.75 * MS, "likely")
    advice = assert_bounded(found(CONVOLUTION, kernel(TURNING, 1.0), ops=[forward, backward]), busy_pace())
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.certainty == "possible"


def test_batch_norms_gain_as_well() -> None:
    norm = kernel("void at::native::batch_norm_backward_kernel<float>", 2.0, "normalisation")
    last = kernel("void at::native::batch_norm_collect_channels_last", 2.0, "normalisation")
    convolution = CONVOLUTION | {"total_ns": 20 * MS}
    advice = assert_bounded(found(convolution, norm, last, kernel(TURNING, 1.0)), busy_pace())
    assert advice.saving.device_ns == pytest.approx((1.25 * MS, (1 + 4 / 3) * MS))


def test_convolutions_of_one_dimension_have_no_channels_last() -> None:
    ops = [copying("aten::conv1d", 6.0)]
    advice = assert_bounded(found(CONVOLUTION, kernel(TURNING, 1.0), ops=ops), busy_pace())
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.certainty == "possible"
    assert "Conv2d" in advice.fix


def test_only_what_ran_in_steps_counts() -> None:
    twice = CONVOLUTION | {"total_ns": 120 * MS}
    advice = assert_bounded(found(twice, kernel(TURNING, 1.0)), busy_pace())
    assert advice.saving.device_ns[1] == 0.5 * MS


def test_copies_for_another_order_may_be_needed() -> None:
    advice = assert_bounded(found(CONVOLUTION, ops=[copying("aten::contiguous", 1.0)]), busy_pace())
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.certainty == "possible"
    assert advice.evidence["copies_per_step"] == 96


def test_it_is_silent() -> None:
    assert found() is None
    assert found(CONVOLUTION, kernel("void cublasTranspose", 1.0)) is None
    assert found(CONVOLUTION, kernel(TURNING, 0.1)) is None
    assert found(CONVOLUTION, ops=[copying("aten::contiguous", 0.3)]) is None
    assert found(CONVOLUTION, ops=[copying("aten::clone", 1.0)]) is None
    inside = copying("aten::contiguous", 1.0) | {"within": "aten::linear"}
    assert found(CONVOLUTION, ops=[inside]) is None


def test_the_threshold() -> None:
    assert found(CONVOLUTION, kernel(TURNING, 1.0), least_share=0.2) is None


def test_where_the_host_sets_the_pace_there_is_nothing_to_gain() -> None:
    hosted = mean_step(
        unprofiled_ns=(9.0 * MS, 9.0 * MS), busy_ns=1.0 * MS, starved_ns=9.0 * MS, host_path_share=1.0
    )
    assert found(CONVOLUTION, kernel(TURNING, 0.2), step=hosted) is None
    assert found(CONVOLUTION, kernel(TURNING, 0.2)) is not None
