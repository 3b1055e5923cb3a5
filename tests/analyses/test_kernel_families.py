"""Kinds of device work: the family of real kernels, and sums that are whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.drawing import Drawing
from tests.samples import SAMPLES, open_shared

import stepscope
from stepscope.analyses.kernel_families import KernelFamily, kernel_families
from stepscope.costs.families import FAMILIES, family_of

NAMES = Path(__file__).parent.parent / "data" / "kernel_names.tsv"
"""Family, operator (- for none) and name of kernels of real profiles, each judged by eye."""

# Kernels of libraries that none of our profiles has.
OTHERS = [
    (
        "attention",
        "void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_params)",
    ),
    ("attention", "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int>>>()"),
    ("attention", "void flashinfer::BatchPrefillWithPagedKVCacheKernel<(flashinfer::MaskMode)1>()"),
    ("attention", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>()"),
    ("attention", "triton_tem_fused_flex_attention_0"),
    ("attention", "triton_tem_fused_zeros_flex_attention_backward_4"),
    ("attention", "bwd_kernel_dk_dv"),
    ("matmul", "triton_tem_fused_mm_0"),
    ("matmul", "triton_tem_fused_addmm_relu_3"),
    ("matmul", "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn"),
    ("matmul", "fused_moe_kernel"),
    ("matmul", "void marlin::Marlin<__half, 256, 1, 8, 8, 4, false, 4, 8>(int4 const*, int4 const*, int4*)"),
    ("matmul", "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, 128u, 1u>(__nv_bfloat16*)"),
    ("convolution", "triton_tem_fused_convolution_2"),
    (
        "convolution",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>()",
    ),
    ("convolution", "void at::native::im2col_kernel<float>(long, float const*, long, long)"),
    ("convolution", "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4>>(ConvParamsBase)"),
    ("normalisation", "_layer_norm_fwd_1pass_kernel"),
    ("normalisation", "void flashinfer::norm::RMSNormKernel<8u, __half>(__half*, __half*, __half*, float)"),
    ("normalisation", "void transformer_engine::normalization::ln_fwd_tuned_kernel<int>(int)"),
    (
        "normalisation",
        "void at::native::(anonymous namespace)::ComputeFusedParamsCUDAKernel_group_norm<float>()",
    ),
    ("reduction", "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>()"),
    ("reduction", "liger_cross_entropy_kernel"),
    ("indexing", "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>()"),
    ("indexing", "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, long, long, unsigned int>()"),
    (
        "indexing",
        "void at::native::(anonymous namespace)::compute_grad_weight<float>(long const*, float const*)",
    ),
    ("indexing", "void vllm::moe::moe_align_block_size_kernel<int>(int const*, int*, int*)"),
    ("elementwise", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(c10::BFloat16*)"),
    ("elementwise", "_rope_kernel"),
    ("elementwise", "triton_poi_fused__scaled_dot_product_flash_attention_add_2"),
    ("optimizer", "triton_for_fused_0"),
    ("copy", "triton_poi_fused_clone_transpose_view_12"),
    ("other", "my_kernel"),
]


def real_names() -> list[tuple[str, str | None, str]]:
    lines = [line.split("\t") for line in NAMES.read_text(encoding="utf-8").splitlines()]
    return [(family, None if op == "-" else op, name) for family, op, name in lines]


def test_the_families_of_real_kernels() -> None:
    names = real_names()
    assert len(names) > 150
    wrong = [
        (family_of(name, op), family, name) for family, op, name in names if family_of(name, op) != family
    ]
    assert not wrong


@pytest.mark.parametrize("family,name", OTHERS)
def test_a_kernel_of_another_library(family: str, name: str) -> None:
    assert family_of(name) == family


@pytest.mark.parametrize(
    "family,op",
    [
        ("matmul", "aten::addmm"),
        ("matmul", "aten::_scaled_mm"),
        ("attention", "vllm::unified_attention_with_output"),
        ("convolution", "aten::convolution_backward"),
        ("normalisation", "aten::native_group_norm"),
        ("indexing", "aten::index_select"),
        ("reduction", "aten::amax"),
        ("elementwise", "aten::mul_"),
        ("copy", "aten::copy_"),
        ("optimizer", "aten::_foreach_addcdiv_"),
        ("other", "aten::mmap_like"),
        ("other", None),
    ],
)
def test_the_operator_speaks_where_the_name_is_silent(family: str, op: str | None) -> None:
    assert family_of("unknown_kernel_7", op) == family


def test_a_product_inside_a_convolution_is_part_of_it() -> None:
    assert family_of("ampere_sgemm_128x64_nn", "aten::cudnn_convolution") == "convolution"
    assert family_of("ampere_sgemm_128x64_nn", "aten::mm") == "matmul"


def table(drawing: Drawing, folder: Path) -> dict[str, KernelFamily]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return {row.family: row for row in kernel_families(trace)}


def test_time_inside_the_steps_is_divided(tmp_path: Path) -> None:
    # One step: mark 0..20; what was launched in it ends at 30; a kernel without a launch, -5..2, ended before
    # all others began. So the step is 2..30. A product 4..14; a copy 10..18, beside it for 4; a fill 28..30.
    # Times: matmul 10, of which it has 6 + 2 for itself; copy 8 + 2, of which 4 + 2 + 2.
    drawing = Drawing().mark(1, 0, 20).op("aten::mm", 1, 2).launch("cudaLaunchKernel", 1, 1, corr=1)
    drawing.launch("cudaMemcpyAsync", 5, 1, corr=2).launch("cudaMemsetAsync", 6, 1, corr=3)
    drawing.kernel("my_kernel", 4, 10, corr=1).memcpy(
        "Memcpy DtoD (Device -> Device)", 10, 8, corr=2, stream=8
    )
    drawing.memset("Memset (Device)", 28, 2, corr=3).kernel("triton_poi_fused_add_0", -5, 7)
    found = table(drawing, tmp_path)
    assert set(found) == {"matmul", "copy"}
    assert (found["matmul"].total_ns, found["matmul"].exclusive_ns) == (10_000, 8_000)
    assert (found["copy"].total_ns, found["copy"].exclusive_ns) == (10_000, 8_000)
    assert (found["copy"].calls, found["copy"].kernels) == (2, 2)
    assert found["matmul"].share == found["copy"].share == 0.5
    assert found["copy"].longest == "Memcpy DtoD (Device -> Device)"


def test_work_across_the_end_of_a_step_counts_in_part(tmp_path: Path) -> None:
    # The step is 0..10; a kernel that nothing in it launched runs 8..20.
    drawing = Drawing().mark(1, 0, 10).kernel("triton_red_fused_sum_0", 8, 12)
    drawing.launch("cudaLaunchKernel", 1, 1, corr=1).kernel("triton_poi_fused_add_0", 2, 1, corr=1)
    found = table(drawing, tmp_path)
    assert (found["reduction"].calls, found["reduction"].total_ns) == (1, 2_000)


def test_communication_is_told_as_everywhere(tmp_path: Path) -> None:
    drawing = Drawing().kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 0, 3)
    assert set(table(drawing, tmp_path)) == {"communication"}


def test_a_profile_without_device_work(tmp_path: Path) -> None:
    trace = stepscope.open(Drawing().op("aten::mm", 0, 5).write(tmp_path / "a.json"), store=tmp_path / "s")
    answer = kernel_families(trace)
    assert len(answer) == 0
    assert answer.notes == ("No device work in the profile: record with ProfilerActivity.CUDA.",)


@pytest.mark.parametrize("name", SAMPLES)
def test_all_kernels_of_a_sample_have_a_family(name: str, sample: Callable[[str], Path]) -> None:
    pairs = (
        open_shared(sample(name))
        .arrow(
            """
            SELECT DISTINCT k.name, o.name AS op FROM device_work k LEFT JOIN ops o ON o.event = k.op
            WHERE kind = 'kernel' AND NOT communicates
            """
        )
        .to_pylist()
    )
    found = {(pair["name"], family_of(pair["name"], pair["op"])) for pair in pairs}
    assert {family for _, family in found} <= set(FAMILIES)
    assert not {kernel for kernel, family in found if family == "other"}
