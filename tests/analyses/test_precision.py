"""Data types of matrix products, attention and convolutions."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.precision import Precision, precision
from stepscope.costs.families import family_of
from stepscope.costs.precision import Used, is_misaligned, is_side_kernel, operands, precision_of

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"

NAMED = [
    ("fp32", "volta_sgemm_64x32_sliced1x4_nn"),
    ("fp32", "ampere_gcgemm_64x64_nt"),
    ("fp32", "cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1"),
    ("fp32", "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>(Params)"),
    (
        "fp32",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4",
    ),
    ("fp32", "void gemvNSP_kernel<float, float, float, float, 1, 16, 4, 1024, int>(int)"),
    (
        "fp32",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
    ),
    (
        "fp32",
        "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)",
    ),
    ("fp32", "Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16_MI16x16x1_SN"),
    ("fp64", "sm90_xmma_gemm_f64f64_f64f64_f64_nn_n_tilesize64x64x32_stage3_warpsize2x2x1_tensor16x8x16"),
    ("fp64", "volta_dgemm_128x64_nn"),
    ("fp64", "void cutlass::Kernel2<cutlass_80_tensorop_d884gemm_128x64_16x3_nn_align1>(Params)"),
    ("fp64", "Cijk_Ailk_Bljk_DB_MT64x64x8_SE_K1"),
    ("tf32", "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1"),
    ("tf32", "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x32"),
    ("tf32", "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align4>(Params)"),
    (
        "tf32",
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4>(Params)",
    ),
    ("tf32", "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS_10tfloat32_tE"),
    ("tf32", "Cijk_Alik_Bljk_SXS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x16"),
    ("fp16", "nvjet_sm90_hsh_64x8_64x16_1x2_h_bz_bias_TNT"),
    ("fp16", "volta_h884gemm_128x64_ldg8_nn"),
    ("fp16", "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn"),
    ("fp16", "void cutlass::Kernel2<cutlass_75_tensorop_s1688gemm_f16_128x128_nn_align1>(Params)"),
    ("fp16", "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize64x128x64"),
    ("fp16", "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>>(Params)"),
    ("fp16", "Cijk_Ailk_Bljk_HHS_BH_MT64x64x16_MI32x32x8"),
    ("bf16", "nvjet_tst_192x8_64x8_4x1_v_bz_TNT"),
    ("bf16", "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn>(Params)"),
    ("bf16", "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"),
    ("bf16", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1"),
    ("bf16", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>()"),
    ("bf16", "igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt128x64x32_wt32x32x8"),
    ("bf16", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1"),
    ("bf16", "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"),
    ("fp8", "nvjet_sm90_qqtst_64x64_128x13_2x1_v_bz_algo2_TNT"),
    ("fp8", "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16"),
    ("fp8", "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext"),
    ("fp8", "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128"),
    ("fp8", "Cijk_Alik_Bljk_F8BS_BH_Bias_SAB_UserArgs_MT16x16x256"),
    ("fp4", "nvjet_ootst_128x256_256x4_2x1_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT"),
    ("int8", "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_64x64_128x6_tn_align16>(Params)"),
    ("int8", "sm80_xmma_gemm_i8i8_i8i32_f32_tn_n_tilesize64x64x64"),
    ("int8", "Cijk_Alik_Bljk_I8II_BH_MT64x64x32"),
    # What says nothing, or what says the same for two types.
    ("unknown", "attn_fwd"),
    ("unknown", "kernel_unified_attention_3d"),
    ("unknown", "triton_tem_fused_mm_bf16_0"),
    ("unknown", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1"),
]


@pytest.mark.parametrize("used,name", NAMED)
def test_a_kernel_by_its_name(used: str, name: str) -> None:
    assert precision_of(name).precision == used


@pytest.mark.parametrize(
    "used,basis,types",
    [
        ("bf16", "input types", ("c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "", "Scalar")),
        ("fp16", "input types", ("c10::Half", "c10::Half")),
        ("fp64", "input types", ("double", "double")),
        ("fp8", "input types", ("c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float")),
        ("bf16", "input types", ("c10::BFloat16", "signed char")),
        # Sums of attention follow in fp32.
        ("bf16", "input types", ("c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "float")),
        ("unknown", None, ("float", "float")),
        ("unknown", None, ("TensorList",)),
        ("unknown", None, ()),
    ],
)
def test_a_kernel_by_its_inputs(used: str, basis: str | None, types: tuple[str, ...]) -> None:
    found = precision_of("triton_tem_fused_mm_0", types)
    assert (found.precision, found.basis) == (used, basis)
    assert (found.reason is None) == (used != "unknown")


def test_the_name_is_believed_more_than_the_inputs() -> None:
    assert precision_of("nvjet_qqtst_64x64", ("c10::BFloat16",)) == Used("fp8", "kernel name")


def test_every_product_that_was_recorded_has_its_type(tmp_path: Path) -> None:
    # The program named each range after the data type. Ranges and launches are read with `json` alone.
    with gzip.open(RECORDINGS / "matmuls.pt.trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {
        "torch.float64": "fp64",
        "torch.float32": "fp32",
        "torch.float16": "fp16",
        "torch.bfloat16": "bf16",
    }
    names |= {"tf32": "tf32", "fp8": "fp8", "int8": "int8", "batched": "bf16"}
    ranges = [e for e in events if e.get("cat") == "user_annotation" and e["name"].split()[0] in names]
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    seen = set()
    for event in events:
        if (
            event.get("cat") != "kernel"
            or family_of(event["name"]) != "matmul"
            or is_side_kernel(event["name"])
        ):
            continue
        at = launches[event["args"]["correlation"]]
        (around,) = [one for one in ranges if one["ts"] <= at < one["ts"] + one["dur"]]
        assert precision_of(event["name"]).precision == names[around["name"].split()[0]], event["name"]
        seen.add(around["name"])
    assert seen == {one["name"] for one in ranges}


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    # Of each data type a product of even sizes (1024, 512, 2048) and one of odd (1000, 999, 1001), twice.
    trace = open_shared(RECORDINGS / "matmuls.pt.trace.json.gz")
    found = {row.precision: (row.sized_calls, row.misaligned_calls) for row in precision(trace)}
    assert found == {
        "fp64": (4, None),
        "fp32": (4, None),
        "tf32": (4, 2),
        "fp16": (4, 2),
        "bf16": (6, 2),
        "fp8": (2, 0),
        "int8": (2, 0),
    }


@pytest.mark.parametrize(
    "op,dims,product",
    [
        ("aten::mm", [[3, 4], [4, 5]], (3, 5, 4)),
        ("aten::addmm", [[5], [3, 4], [4, 5], [], []], (3, 5, 4)),
        ("aten::bmm", [[2, 3, 4], [2, 4, 5]], (3, 5, 4)),
        ("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5]], (3, 5, 4)),
        ("aten::_scaled_mm", [[3, 4], [4, 5], [], []], (3, 5, 4)),
        ("aten::mm", [[3, 4], [5, 4]], None),
        ("aten::mm", [[3, 4]], None),
        ("aten::mm", [[], [4, 5]], None),
        ("aten::cudnn_convolution", [[3, 4], [4, 5]], None),
    ],
)
def test_sizes_of_a_product(op: str, dims: Any, product: Any) -> None:
    assert operands(op, json.dumps({"Input Dims": dims})).product == product


@pytest.mark.parametrize("args", [None, "", "[]", "{", '{"Input Dims": 7, "Input type": null}'])
def test_arguments_that_say_nothing(args: str | None) -> None:
    assert operands("aten::mm", args).product is None
    assert operands("aten::mm", args).types == ()


@pytest.mark.parametrize(
    "sizes,used,misaligned",
    [
        ((8, 16, 24), "bf16", False),
        ((8, 16, 25), "bf16", True),
        ((8, 16, 32), "fp8", True),
        ((16, 16, 32), "int8", False),
        ((4, 4, 12), "tf32", False),
        ((4, 4, 6), "tf32", True),
        ((3, 5, 7), "fp32", None),
    ],
)
def test_multiples_that_data_types_ask_for(sizes: Any, used: str, misaligned: bool | None) -> None:
    assert is_misaligned(sizes, used) is misaligned


# ---------------------------------------------------------------- tables


def product(
    drawing: Drawing, at: int, dims: Any, kernels: list[tuple[str, int, int]], **args: Any
) -> Drawing:
    """An aten::mm of 2 µs that launches kernels: (name, start, duration)."""
    drawing.op("aten::mm", at, 2, args={"Input Dims": dims, **args})
    for name, start, dur in kernels:
        corr = len(drawing.events)
        drawing.launch("cudaLaunchKernel", at, 0.5, corr=corr).kernel(name, start, dur, corr=corr)
    return drawing


def rows(drawing: Drawing, folder: Path) -> dict[tuple[str, str], Precision]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return {(row.family, row.precision): row for row in precision(trace)}


SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float>(int)"


def test_a_table_worked_out(tmp_path: Path) -> None:
    # bf16: 10 and, of odd sizes, 20 µs; tf32 with the sum of its pieces, which are fp32: 5 + 1; a silent one
    # with fp32 inputs: 4. In all 40.
    drawing = Drawing().mark(1, 0, 100)
    bf16 = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
    fp32 = {"Input type": ["float", "float"]}
    product(drawing, 1, [[64, 64], [64, 64]], [("nvjet_tst_a", 10, 10)], **bf16)
    product(drawing, 4, [[65, 64], [64, 64]], [("nvjet_tst_a", 20, 20)], **bf16)
    product(
        drawing, 7, [[8, 8], [8, 8]], [("cutlass_80_tensorop_s1688gemm_x", 40, 5), (SPLIT, 45, 1)], **fp32
    )
    product(drawing, 10, [[7, 8], [8, 8]], [("triton_tem_fused_mm_0", 50, 4)], **fp32)
    found = rows(drawing, tmp_path)
    assert set(found) == {("matmul", "bf16"), ("matmul", "tf32"), ("matmul", "unknown")}
    bf = found["matmul", "bf16"]
    assert (bf.calls, bf.total_ns, bf.share, bf.basis) == (2, 30_000, 30 / 40, "kernel name")
    assert (bf.sized_calls, bf.misaligned_calls, bf.misaligned_ns) == (2, 1, 20_000)
    tf = found["matmul", "tf32"]
    assert (tf.calls, tf.total_ns, tf.misaligned_calls) == (1, 6_000, 0)
    silent = found["matmul", "unknown"]
    assert (silent.calls, silent.misaligned_calls) == (1, None)
    assert silent.reason
    assert "tf32" in silent.reason


def test_only_what_ran_inside_the_steps_counts(tmp_path: Path) -> None:
    # Launched in the mark 0..10; the step ends with it, at 20. The second began after it.
    drawing = Drawing().mark(1, 0, 10)
    product(drawing, 1, [[8, 8], [8, 8]], [("nvjet_tst_a", 10, 10)])
    product(drawing, 30, [[8, 8], [8, 8]], [("nvjet_tst_a", 40, 10)])
    (row,) = rows(drawing, tmp_path).values()
    assert (row.calls, row.total_ns, row.share) == (1, 10_000, 1.0)


def test_a_side_kernel_alone_has_its_own_type(tmp_path: Path) -> None:
    # Without the product that it belongs to there is nothing to inherit from.
    drawing = Drawing().kernel(SPLIT, 0, 3)
    (row,) = rows(drawing, tmp_path).values()
    assert (row.precision, row.calls, row.total_ns) == ("fp32", 0, 3_000)


def test_without_shapes_sizes_are_unknown(tmp_path: Path) -> None:
    trace = stepscope.open(
        Drawing().kernel("nvjet_hsh_a", 0, 3).write(tmp_path / "a.json"), store=tmp_path / "store"
    )
    table = precision(trace)
    (row,) = table
    assert (row.sized_calls, row.misaligned_calls, row.misaligned_ns) == (0, None, None)
    assert any("record_shapes=True" in note for note in table.notes)


def test_a_profile_without_heavy_kernels(tmp_path: Path) -> None:
    trace = stepscope.open(Drawing().op("aten::mm", 0, 5).write(tmp_path / "a.json"), store=tmp_path / "s")
    assert len(precision(trace)) == 0
