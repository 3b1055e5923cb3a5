from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.dtype_conversions import dtype_conversions

STEP = busy_pace(busy_ns=9.0 * MS)
PEAKS = {**H200.peak_flops, "fp64": 33.5e12, "fp64_matrix": 67e12, "bf16": 989e12}
TOLD = facts(devices=(replace(H200, peak_flops=PEAKS),))
ADD = {
    "name": "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<double>, …>",
    "family": "elementwise",
    "calls": 40,
    "share": 0.2,
    "total_ns": 2 * MS,
    "mean_ns": 50_000.0,
}


PRODUCTS = {"family": "matmul", "precision": "fp64", "calls": 200, "total_ns": 40 * MS}


def judged(*kernels: dict[str, Any], products: tuple[Any, ...] = (), **thresholds: float) -> Advice | None:
    tables = drawn(Kernel, *kernels), drawn(Precision, *products), drawn(StepOp)
    return dtype_conversions(STEP, TOLD, *tables, **thresholds)


def test_it_fires_and_promises_half_of_it_at_the_least() -> None:
    short = {**ADD, "share": 0.1, "mean_ns": 2000.0}
    advice = assert_bounded(judged(ADD, short), STEP)
    assert advice.saving.device_ns == pytest.approx((0.9 * MS, 63 / 64 * 2.7 * MS))
    assert advice.evidence["kernels"] == 2


@pytest.mark.parametrize(
    "name",
    [
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::{lambda(double)#1}",
        "reduce_kernel<512, 1, at::native::ReduceOp<double, at::native::func_wrapper_t<double, …>",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<double, double>(int, double)",
        "unrolled_elementwise_kernel<at::native::CUDAFunctor_add<c10::complex<double> >, …>",
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::complex<double>)#1}",
        "void regular_fft<1024u, EPT<8u>, (layout_t)1, unsigned int, double, …>(kernel_arguments_t<…>)",
        "void dpRadix0064B::kernel1Mem<unsigned int, double, (fftDirection_t)-1, 64u>(…)",
    ],
)
def test_names_that_compute_with_double(name: str) -> None:
    assert judged({**ADD, "name": name}) is not None


@pytest.mark.parametrize(
    "name",
    [
        "amp_update_scale_cuda_kernel(float*, int*, float const*, double, double, int)",
        "nan_to_num_kernel_cuda(at::TensorIteratorBase&, c10::optional<double>)::{lambda(float)#1}",
        "normal_kernel<at::CUDAGeneratorImpl*>(at::TensorBase const&, double, double)::{lambda(float)#1}",
        "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>",
        "unrolled_elementwise_kernel<at::native::CUDAFunctor_add<c10::complex<float> >, …>",
        "void vector_fft_r2c<1024u, EPT<16u>, (layout_t)0, unsigned int, float>(kernel_arguments_t<…>)",
        "void spRadix0064B::kernel1Mem<unsigned int, float, (fftDirection_t)-1, 64u>(…)",
    ],
)
def test_names_that_only_have_a_scalar(name: str) -> None:
    assert judged({**ADD, "name": name}) is None


def test_where_most_is_float64_it_may_be_meant() -> None:
    advice = assert_bounded(judged({**ADD, "share": 0.8}), STEP)
    assert advice.saving.device_ns == pytest.approx((3.6 * MS, 63 / 64 * 7.2 * MS))
    assert advice.certainty == "possible"


def test_a_model_in_float64_is_one_finding_with_its_products() -> None:
    advice = assert_bounded(judged(ADD, products=(PRODUCTS,)), STEP)
    assert advice.title == "The model computes in float64"
    low, high = advice.saving.device_ns
    products_ns = STEP.per_step(40 * MS)
    assert low == pytest.approx(0.9 * MS + products_ns * (1 - (67 / 989) ** 0.5), rel=1e-3)
    assert high == pytest.approx(63 / 64 * 1.8 * MS + products_ns * (1 - 67 / 989), rel=1e-3)
    assert advice.claims == {Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.DEVICE, Part.MATMUL)}
    assert advice.certainty == "possible"  # it may be on purpose
    assert "model.float()" in advice.fix
    assert "autocast" in advice.fix


def test_without_the_peaks_of_the_gpu_products_promise_nothing_for_sure() -> None:
    tables = drawn(Kernel), drawn(Precision, PRODUCTS), drawn(StepOp)
    advice = assert_bounded(dtype_conversions(STEP, facts(devices=()), *tables), STEP)
    assert advice.saving.device_ns == pytest.approx((0.0, STEP.per_step(40 * MS)))


def test_it_is_silent_for_trifles_and_matrix_products() -> None:
    assert judged({**ADD, "share": 0.01}) is None
    assert judged({**ADD, "family": "matmul"}) is None
    assert judged({**ADD, "name": None}) is None
    assert judged() is None
    assert judged({**ADD, "share": 0.01}, least_share=0.005) is not None
