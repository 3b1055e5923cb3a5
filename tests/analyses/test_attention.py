"""Implementations of attention: recorded ones, and drawn ones that none of our profiles has."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.attention import Attention, attention
from stepscope.costs.attention import Sizes, backend_of, is_backward, sizes_of
from stepscope.costs.families import family_of

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
WAYS = {
    "flash": "flash",
    "cudnn": "cudnn",
    "efficient": "memory-efficient",
    "math": "math",
    "by hand": "hand-written",
}


def recorded_kernels() -> dict[str, list[tuple[str, int]]]:
    """Name and time of the kernels launched in each range of the program, read with `json` alone."""
    with gzip.open(RECORDINGS / "attention.pt.trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    ranges = [e for e in events if e.get("cat") == "user_annotation" and e["name"] in WAYS]
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    found = defaultdict(list)
    for event in events:
        if event.get("cat") == "kernel":
            at = launches[event["args"]["correlation"]]
            around = [one["name"] for one in ranges if one["ts"] <= at < one["ts"] + one["dur"]]
            if around:
                found[around[0]].append((event["name"], round(event["dur"] * 1000)))
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, Attention]:
    trace = open_shared(RECORDINGS / "attention.pt.trace.json.gz")
    rows = list(attention(trace))
    found = {row.backend: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_every_way_that_was_taken_is_found(recorded: dict[str, Attention]) -> None:
    # Two steps; each takes every way once, forward and backward.
    assert set(recorded) == set(WAYS.values())
    calls = {row.backend: (row.forward_calls, row.backward_calls) for row in recorded.values()}
    assert calls == dict.fromkeys(WAYS.values(), (2, 2))


def test_sizes_that_were_recorded(recorded: dict[str, Attention]) -> None:
    for row in recorded.values():
        by_hand = row.backend == "hand-written"
        assert (row.query_length, row.key_length, row.head_dim) == (512, 512, 64)
        assert (row.batch, row.heads) == ((None, None) if by_hand else (4, 8))
        assert row.reason is None


def test_data_types_that_were_used(recorded: dict[str, Attention]) -> None:
    # All inputs are bf16; torch's own products are done in fp32.
    found = {row.backend: row.precision for row in recorded.values()}
    assert found == dict.fromkeys(WAYS.values(), "bf16") | {"math": "fp32"}


@pytest.mark.parametrize("way", ["flash", "cudnn", "efficient"])
def test_the_time_of_a_fused_one_is_that_of_its_kernels(way: str, recorded: dict[str, Attention]) -> None:
    words = ("flash", "fmha", "sdpa", "dot_do_o", "convert_dq")
    kernels = [(name, dur) for name, dur in recorded_kernels()[way] if any(word in name for word in words)]
    row = recorded[WAYS[way]]
    assert row.forward_ns + row.backward_ns == sum(dur for _, dur in kernels)
    fprop = ("flash_fwd", "fmha_cutlassF", "flash_fprop")
    assert row.forward_ns == sum(dur for name, dur in kernels if any(word in name for word in fprop))


@pytest.mark.parametrize("way", ["math", "by hand"])
def test_the_time_of_one_in_parts_has_its_products_and_softmax(
    way: str, recorded: dict[str, Attention]
) -> None:
    # Beside them the range has the sum that the program takes of it, and the gradients that it adds up.
    kernels = recorded_kernels()[way]
    least = sum(dur for name, dur in kernels if family_of(name) == "matmul" or "softmax" in name)
    row = recorded[WAYS[way]]
    assert least < row.forward_ns + row.backward_ns < sum(dur for _, dur in kernels)


# ---------------------------------------------------------------- drawn


def table(drawing: Drawing, folder: Path) -> list[Attention]:
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return list(attention(trace))


class Chain(Drawing):
    """Operators of 2 µs, one after the other, each with a kernel of as many µs as are said, 100 µs later."""

    at = 0

    def run(self, op: str, kernel: str, dur: int, dims: Any = None, **more: Any) -> Chain:
        self.at += 3
        corr = len(self.events) + 1
        self.op(op, self.at, 2, args={"Input Dims": dims} if dims else {}, **more)
        self.launch("cudaLaunchKernel", self.at + 1, 0.5, corr=corr, **more)
        self.kernel(kernel, 100 + 20 * self.at, dur, corr=corr)
        return self


SCORES = [[32, 128, 64], [32, 64, 128]]
VALUES = [[32, 128, 128], [32, 128, 64]]


def by_hand(chain: Chain) -> Chain:
    chain.run("aten::bmm", "nvjet_tst_a", 10, SCORES).run("aten::div", "elementwise_kernel", 2)
    chain.run("aten::_softmax", "softmax_warp_forward", 3)
    return chain.run("aten::bmm", "nvjet_tst_b", 7, VALUES)


@pytest.mark.parametrize("kernel, backend", [("_safe_softmax", "math"), ("_softmax", "hand-written")])
def test_torchs_own_softmax_is_known_in_compiled_code(kernel: str, backend: str, tmp_path: Path) -> None:
    chain = Chain().run("aten::bmm", "nvjet_tst_a", 10, SCORES)
    fused = f"triton_red_fused_{kernel}_add_where_4"
    (row,) = table(chain.run(fused, fused, 3).run("aten::bmm", "nvjet_tst_b", 7, VALUES), tmp_path)
    assert (row.backend, row.forward_calls, row.forward_ns) == (backend, 1, 20_000)


def written_out(*between: str) -> Chain:
    chain = Chain().run("aten::bmm", "nvjet_tst_a", 10, SCORES)
    for op in between:
        chain.run(op, "elementwise_kernel", 2)
    return chain.run("aten::bmm", "nvjet_tst_b", 7, VALUES)


def test_a_softmax_that_is_written_out(tmp_path: Path) -> None:
    (row,) = table(written_out("aten::amax", "aten::sub", "aten::exp", "aten::sum", "aten::div"), tmp_path)
    assert (row.backend, row.forward_calls, row.forward_ns) == ("hand-written", 1, 27_000)
    assert (row.query_length, row.key_length, row.head_dim) == (128, 128, 64)


@pytest.mark.parametrize("between", [("aten::exp",), ("aten::sum",), ("aten::exp", "aten::mm", "aten::sum")])
def test_an_exponential_that_is_no_softmax(between: tuple[str, ...], tmp_path: Path) -> None:
    assert table(written_out(*between), tmp_path) == []


def test_products_around_a_softmax(tmp_path: Path) -> None:
    # 10 + 2 + 3 + 7 of 40; the layers before and after are none of it.
    chain = Chain().run("aten::mm", "nvjet_tst_c", 9)
    (row,) = table(by_hand(chain).run("aten::addmm", "nvjet_tst_c", 9), tmp_path)
    assert (row.backend, row.precision, row.forward_calls, row.forward_ns) == (
        "hand-written",
        "bf16",
        1,
        22_000,
    )
    assert (row.query_length, row.key_length, row.head_dim, row.share) == (128, 128, 64, 22 / 40)


WIDE, MASK = [32, 128, 128], [1, 128, 128]
NUMBER: list[int] = []


def masked(*between: tuple[str, Any], before: tuple[tuple[str, Any], ...] = ()) -> Chain:
    chain = Chain()
    for op, inputs in before:
        chain.run(op, "triangle_kernel", 1, [WIDE], **{"Concrete Inputs": inputs})
    chain.run("aten::bmm", "nvjet_tst_a", 10, SCORES)
    for op, dims in between:
        chain.run(op, "elementwise_kernel", 2, dims)
    chain.run("aten::_softmax", "softmax_warp_forward", 3)
    return chain.run("aten::bmm", "nvjet_tst_b", 7, VALUES)


FILL = ("aten::masked_fill", [WIDE, MASK, NUMBER])
ADD = ("aten::add", [WIDE, MASK, NUMBER])
BELOW, ABOVE = ("aten::tril", ["", "0"]), ("aten::triu", ["", "1"])


@pytest.mark.parametrize(
    "drawing,mask",
    [
        (masked(), "none"),
        (masked(("aten::mul", [WIDE, NUMBER])), "none"),
        (masked(("aten::add", [WIDE, NUMBER, NUMBER])), "none"),
        (masked(("aten::add", None)), None),
        (masked(ADD), "some"),
        (masked(FILL), "some"),
        (masked(before=(BELOW,)), "none"),
        (masked(FILL, before=(BELOW,)), "causal"),
        (masked(ADD, before=(ABOVE,)), "causal"),
        (masked(FILL, before=(ABOVE, BELOW)), "some"),
        (masked(FILL, before=(("aten::tril", ["", "8"]),)), "some"),
        (masked(FILL, before=(BELOW, ("aten::logical_and", []))), "some"),
    ],
)
def test_a_mask_is_causal_only_if_the_profile_shows_it(
    drawing: Chain, mask: str | None, tmp_path: Path
) -> None:
    (row,) = table(drawing, tmp_path)
    assert row.mask == mask


def test_a_softmax_between_layers_is_none(tmp_path: Path) -> None:
    # A router: a linear layer, a softmax, then the experts' products.
    chain = Chain().run("aten::addmm", "nvjet_tst_a", 5).run("aten::_softmax", "softmax_warp_forward", 3)
    assert table(chain.run("aten::bmm", "nvjet_tst_b", 7, VALUES), tmp_path) == []


def test_values_may_be_computed_when_they_are_needed(tmp_path: Path) -> None:
    # 10 + 3 + 7; the product that makes the values is none of it.
    chain = Chain().run("aten::bmm", "nvjet_tst_a", 10, SCORES)
    chain.run("aten::_softmax", "softmax_warp_forward", 3).run("aten::mm", "nvjet_tst_c", 5)
    (row,) = table(chain.run("aten::bmm", "nvjet_tst_b", 7, VALUES), tmp_path)
    assert (row.backend, row.forward_calls, row.forward_ns) == ("hand-written", 1, 20_000)


def test_a_layer_between_product_and_softmax_is_none(tmp_path: Path) -> None:
    chain = Chain().run("aten::bmm", "nvjet_tst_a", 5, SCORES).run("aten::mm", "nvjet_tst_b", 5)
    chain.run("aten::_softmax", "softmax_warp_forward", 3).run("aten::bmm", "nvjet_tst_b", 7, VALUES)
    assert table(chain, tmp_path) == []


def test_operators_of_another_thread_do_not_break_a_chain(tmp_path: Path) -> None:
    chain = Chain().run("aten::bmm", "nvjet_tst_a", 10, SCORES)
    chain.run("aten::mm", "nvjet_tst_b", 5, thread=2)
    chain.run("aten::_softmax", "softmax_warp_forward", 3).run("aten::bmm", "nvjet_tst_b", 7, VALUES)
    (row,) = table(chain, tmp_path)
    assert (row.backend, row.forward_ns) == ("hand-written", 20_000)


def test_torchs_own_products(tmp_path: Path) -> None:
    dims = [[4, 8, 128, 64]] * 3
    chain = Chain().op("aten::_scaled_dot_product_attention_math", 2, 13, args={"Input Dims": dims})
    assert isinstance(chain, Chain)
    (row,) = table(by_hand(chain), tmp_path)
    assert (row.backend, row.forward_ns, row.forward_calls) == ("math", 22_000, 1)
    assert (row.batch, row.heads, row.query_length, row.key_length, row.head_dim) == (4, 8, 128, 128, 64)


def test_gradients_belong_to_their_forward(tmp_path: Path) -> None:
    # The first product has the number 5; in backward another thread works for that number.
    chain = Chain()
    chain.op("aten::matmul", 2.5, 3, args={"Sequence number": 5, "Fwd thread id": 0})
    by_hand(chain)
    node = {"Sequence number": 5, "Fwd thread id": 1}
    chain.op("autograd::engine::evaluate_function: BmmBackward0", 30, 5, thread=2, args=node)
    chain.op("BmmBackward0", 30, 5, thread=2, args=node).op("aten::bmm", 31, 2, thread=2)
    chain.launch("cudaLaunchKernel", 31.5, 0.5, corr=99, thread=2).kernel("nvjet_tst_d", 900, 13, corr=99)
    (row,) = table(chain, tmp_path)
    assert (row.backend, row.forward_ns, row.backward_ns) == ("hand-written", 22_000, 13_000)


def test_a_replayed_graph_has_names_alone(tmp_path: Path) -> None:
    drawing = Drawing().launch("cudaGraphLaunch", 0, 2, corr=1)
    drawing.kernel("kernel_unified_attention_3d", 10, 5, corr=1).kernel("reduce_segments", 15, 1, corr=1)
    (row,) = table(drawing, tmp_path)
    assert (row.backend, row.precision, row.forward_calls, row.forward_ns) == ("paged", "unknown", 1, 6_000)
    assert row.head_dim is None
    assert row.reason
    assert "replayed graph" in row.reason


def test_without_attention_there_is_one_line(tmp_path: Path) -> None:
    drawing = Drawing().op("aten::_scaled_dot_product_flash_attention_for_cpu", 0, 5)
    trace = stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path / "store")
    answer = attention(trace)
    assert len(answer) == 0
    assert "On the host, aten::_scaled_dot_product_flash_attention_for_cpu ran 1 times." in answer.notes


# ---------------------------------------------------------------- names and sizes


@pytest.mark.parametrize(
    "backend,op,kernel",
    [
        ("flash", "aten::_flash_attention_forward", "attn_fwd"),
        ("memory-efficient", "aten::_efficient_attention_forward", "attn_fwd"),
        ("cudnn", None, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"),
        ("flash", None, "void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>()"),
        ("memory-efficient", None, "fmha_cutlassF_bf16_aligned_64x64_rf_sm80()"),
        ("flex", "triton_tem_fused_flex_attention_0", "triton_tem_fused_flex_attention_0"),
        ("paged", "vllm::unified_attention_with_output", "void flash_fwd_splitkv_kernel<int>()"),
        ("paged", None, "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16"),
        ("unknown", None, "my_own_attention_kernel"),
    ],
)
def test_the_backend_of_a_kernel(backend: str, op: str | None, kernel: str) -> None:
    assert family_of(kernel, op) == "attention"
    assert backend_of(kernel, op) == backend


@pytest.mark.parametrize(
    "backward,op,kernel",
    [
        (False, "aten::_flash_attention_forward", "attn_fwd"),
        (True, "aten::_flash_attention_backward", "attn_bwd"),
        (True, None, "fmha_cutlassB_f32_aligned_64x64_k64_sm80()"),
        (True, None, "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16"),
        (False, None, "fmha_cutlassF_f32_aligned_64x64_rf_sm80()"),
        (True, "aten::_cudnn_attention_backward", "void cudnn::fusion::convert_dq_to_16bits<true>()"),
    ],
)
def test_forward_or_backward(backward: bool, op: str | None, kernel: str) -> None:
    assert is_backward(kernel, op) is backward


@pytest.mark.parametrize(
    "op,dims,sizes",
    [
        ("aten::_flash_attention_forward", [[2, 9, 3, 64], [2, 11, 3, 64]], Sizes(2, 3, 9, 11, 64)),
        ("aten::_flash_attention_backward", [[1], [2, 9, 3, 64], [2, 11, 3, 64]], Sizes(2, 3, 9, 11, 64)),
        ("aten::_cudnn_attention_forward", [[2, 3, 9, 64], [2, 3, 11, 64]], Sizes(2, 3, 9, 11, 64)),
        ("vllm::unified_attention_with_output", [[888, 8, 64], [888, 1, 64]], Sizes(heads=8, head_dim=64)),
        ("aten::_flash_attention_forward", [[2, 9, 3, 64]], Sizes()),
        ("aten::_flash_attention_forward", [], Sizes()),
    ],
)
def test_sizes_by_operator(op: str, dims: Any, sizes: Sizes) -> None:
    assert sizes_of(op, json.dumps({"Input Dims": dims})) == sizes


HEADS = [[2, 8, 512, 64]] * 3
ONE_FOR_ALL = [512, 1]


@pytest.mark.parametrize(
    "dims,strides,causal,mask",
    [
        ([], [], "False", "none"),
        ([], [], "True", "causal"),
        ([512, 512], ONE_FOR_ALL, "False", "shared"),
        ([1, 1, 512, 512], [0, 0, 512, 1], "False", "shared"),
        ([2, 8, 512, 512], [0, 0, 512, 1], "False", "shared"),
        ([2, 1, 512, 512], [262144, 262144, 512, 1], "False", "some"),
        ([2, 1, 512, 512], [512, 0, 0, 1], "False", "some"),
        ([1, 512], ONE_FOR_ALL, "False", "some"),
        ([1, 8, 512, 512], [0, 262144, 512, 1], "False", "some"),
    ],
)
@pytest.mark.parametrize(
    "op", ["aten::scaled_dot_product_attention", "aten::_scaled_dot_product_cudnn_attention"]
)
def test_the_mask_of_a_fused_kernel(
    op: str, dims: list[int], strides: list[int], causal: str, mask: str, tmp_path: Path
) -> None:
    before = 2 if "cudnn" in op else 1  # inputs between the mask and whether it is causal
    told = {
        "Input Dims": [*HEADS, dims, *[[]] * (before + 2)],
        "Input Strides": [*HEADS, strides, *[[]] * (before + 2)],
        "Concrete Inputs": ["", "", "", "", *[""] * before, causal, ""],
    }
    drawing = Drawing().op(op, 1, 9, args=told).op("aten::_cudnn_attention_forward", 2, 5, args=told)
    drawing.launch("cudaLaunchKernel", 3, 1, corr=7).kernel("cudnn_generated_fort_native_sdpa", 10, 5, corr=7)
    (row,) = table(drawing, tmp_path)
    assert (row.backend, row.mask) == ("cudnn", mask)


def test_masks_that_differ_for_one_size(tmp_path: Path) -> None:
    drawing = Drawing()
    for at, causal in enumerate(("True", "False")):
        told = {"Input Dims": [*HEADS, *[[]] * 3], "Concrete Inputs": ["", "", "", "", "", causal]}
        drawing.op("aten::scaled_dot_product_attention", 10 * at, 9, args=told)
        drawing.op(
            "aten::_flash_attention_forward", 10 * at + 2, 5, args={"Input Dims": [[2, 512, 8, 64]] * 3}
        )
        drawing.launch("cudaLaunchKernel", 10 * at + 3, 1, corr=at + 1)
        drawing.kernel("flash_fwd_kernel", 100 + 10 * at, 5, corr=at + 1)
    (row,) = table(drawing, tmp_path)
    assert row.mask is None


@pytest.mark.parametrize("masked,mask", [([True, True], "some"), ([True, False], None), ([False], None)])
def test_a_boolean_mask_is_seen_without_shapes(masked: list[bool], mask: str | None, tmp_path: Path) -> None:
    """Torch makes it one of numbers before it calls the fused operator."""
    drawing = Drawing()
    for number, has_mask in enumerate(masked):
        at = 20 * number
        drawing.op("aten::scaled_dot_product_attention", at, 15)
        if has_mask:
            drawing.op("aten::where", at + 1, 2)
        drawing.op("aten::_scaled_dot_product_cudnn_attention", at + 5, 9)
        drawing.launch("cudaLaunchKernel", at + 6, 1, corr=number + 1)
        drawing.kernel("cudnn_generated_fort_native_sdpa", 100 + at, 9, corr=number + 1)
    drawing.op("aten::where", 90, 2)  # of something else
    (row,) = table(drawing, tmp_path)
    assert (row.backend, row.mask, row.query_length) == ("cudnn", mask, None)
