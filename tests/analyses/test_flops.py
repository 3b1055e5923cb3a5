"""FLOPs and bytes of operators: against torch's own counter, and against figures worked out by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.samples import open_shared

import stepscope
from stepscope.analyses.rooflines import rooflines
from stepscope.costs.operators import Cost, cost_of
from stepscope.store.trace import Trace

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
MATRIX = ("matmul", "convolution", "attention")

# torch counts the operator that a program calls, a profile's work is that of the operator inside it.
OUTER = {
    "aten::addmm_": "aten::baddbmm",
    **{
        f"aten::_{kind}_attention_{way}": f"aten::_scaled_dot_product_{kind}_attention{suffix}"
        for kind in ("flash", "efficient", "cudnn")
        for way, suffix in (("forward", ""), ("backward", "_backward"))
    },
}
UNCOUNTED_BY_TORCH = {
    "aten::_int_mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}


def flops_by_op(trace: Trace) -> Counter[str]:
    """FLOPs on matrix units in a profile, by the operator that torch would count."""
    found: Counter[str] = Counter()
    for row in rooflines(trace):
        if row.family in MATRIX:
            assert row.flops is not None, (row.op, row.shapes, row.reason)
            found[outer(str(row.op))] += row.flops
    return found


def outer(op: str) -> str:
    if "conv" in op and "backward" not in op:
        return "aten::convolution"  # each library has an operator of its own inside it
    return OUTER.get(op, op)


# ------------------------------------------------ programs that run here


def transformer(torch: Any) -> Callable[[], None]:
    """A layer with attention written out, and one with torch's own."""
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    words, head = nn.Embedding(50, 32), nn.Linear(32, 50)
    project = nn.Linear(32, 96)
    tokens = torch.randint(0, 50, (3, 10))

    def step() -> None:
        x = layer(words(tokens))
        query, key, value = (one.view(3, 10, 4, 8).transpose(1, 2) for one in project(x).chunk(3, dim=-1))
        scores = (query @ key.transpose(2, 3) / 8**0.5).softmax(-1)
        x = x + (scores @ value).transpose(1, 2).reshape(3, 10, 32)
        nn.functional.cross_entropy(head(x).flatten(0, 1), tokens.flatten()).backward()

    return step


def resnet(torch: Any) -> Callable[[], None]:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, inward: int, outward: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inward, outward, 3, stride, 1, bias=False),
                nn.BatchNorm2d(outward),
                nn.ReLU(),
                nn.Conv2d(outward, outward, 3, 1, 1, bias=False),
                nn.BatchNorm2d(outward),
            )
            self.shortcut = nn.Conv2d(inward, outward, 1, stride)

        def forward(self, x: Any) -> Any:
            return (self.body(x) + self.shortcut(x)).relu()

    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1),
        Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    images = torch.randn(2, 3, 33, 33)
    return lambda: model(images).sum().backward()


def mixture_of_experts(torch: Any) -> Callable[[], None]:
    """Each token goes through two of four experts; and the same as one batch of products."""
    nn = torch.nn
    router = nn.Linear(16, 4)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4))
    stacked = nn.Parameter(torch.randn(4, 16, 16))
    tokens = torch.randn(24, 16)

    def step() -> None:
        weights, chosen = router(tokens).softmax(-1).topk(2)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, places, None])
        dense = torch.baddbmm(torch.zeros(4, 24, 16), tokens.expand(4, 24, 16), stacked).sum(0)
        (out + dense).sum().backward()

    return step


def convolutions(torch: Any) -> Callable[[], None]:
    """Of one to three dimensions, with strides, dilation, padding, transposed; some without all gradients."""
    nn = torch.nn
    pairs = [
        (nn.Conv1d(4, 6, 5, stride=2, padding=1), (2, 4, 30)),
        (nn.Conv2d(4, 6, (3, 5), dilation=2, padding=(0, 3)), (2, 4, 20, 21)),
        (nn.Conv3d(2, 3, 3, stride=(1, 2, 3)), (1, 2, 7, 8, 9)),
        (nn.ConvTranspose1d(4, 6, 5, stride=2, output_padding=1), (2, 4, 11)),
        (nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, dilation=2), (2, 3, 6, 7)),
    ]
    images = [
        (layer, torch.randn(*shape, requires_grad=number % 2 == 0))
        for number, (layer, shape) in enumerate(pairs)
    ]

    def step() -> None:
        for layer, image in images:
            layer(image).sum().backward()

    return step


@pytest.mark.slow
@pytest.mark.parametrize("program", [transformer, resnet, mixture_of_experts, convolutions])
def test_flops_are_those_of_torch(
    program: Callable[[Any], Callable[[], None]], torch: Any, tmp_path: Path
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    step = program(torch)
    step()
    with FlopCounterMode(display=False) as counter:
        step()
    wanted = {str(op).replace(".", "::"): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        step()
    profile.export_chrome_trace(str(tmp_path / "now.json"))
    found = flops_by_op(stepscope.open(tmp_path / "now.json", store=tmp_path / "stores"))
    beyond = {op: found.pop(op) for op in list(found) if op in UNCOUNTED_BY_TORCH}
    assert found == wanted
    assert sum(found.values()) == counter.get_total_flops() > 0
    if program is transformer:
        # torch's counter does not know this operator, but its formula does.
        from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

        shape = (3, 4, 10, 8)
        assert beyond == {
            "aten::_scaled_dot_product_flash_attention_for_cpu": sdpa_flop_count(shape, shape, shape),
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward": sdpa_backward_flop_count(
                *[shape] * 4
            ),
        }


def counted(file: Path) -> bool:
    return bool(json.loads(file.read_text(encoding="utf-8"))["facts"].get("flop_counter"))


COUNTED = [
    file.name.removesuffix(".key_averages.json")
    for file in sorted(RECORDINGS.glob("*.key_averages.json"))
    if counted(file)
]
"""Programs that were recorded on a GPU beside what torch counted in one of their steps."""


def test_there_are_recordings_with_counted_flops() -> None:
    assert {"attention", "checkpointed", "convolution", "matmuls"} <= set(COUNTED)


@pytest.mark.parametrize("name", COUNTED)
def test_flops_on_a_gpu_are_those_of_torch(name: str, tmp_path: Path) -> None:
    facts = json.loads((RECORDINGS / f"{name}.key_averages.json").read_text(encoding="utf-8"))["facts"]
    found = flops_by_op(open_shared(RECORDINGS / f"{name}.pt.trace.json.gz"))
    for op in UNCOUNTED_BY_TORCH:
        found.pop(op, None)
    assert found == {
        op.replace(".", "::"): facts["steps"] * flops for op, flops in facts["flop_counter"].items()
    }


# ------------------------------------------------ figures by hand


def call(name: str, *inputs: Any, kernel: str = "", concrete: bool = True) -> Cost:
    """The cost of an operator: lists are sizes of fp32 tensors, pairs are a type and sizes, texts values."""
    dims, types, values = [], [], []
    for one in inputs:
        kind, sizes = one if isinstance(one, tuple) else ("float", one)
        is_tensor = isinstance(sizes, list)
        dims.append(sizes if is_tensor else [])
        types.append(
            kind
            if is_tensor
            else ""
            if one is None
            else "ScalarList"
            if str(one).startswith("[")
            else "Scalar"
        )
        values.append("" if is_tensor or one is None else str(one))
    args: dict[str, Any] = {"Input Dims": dims, "Input type": types}
    if concrete:
        args["Concrete Inputs"] = values
    return cost_of(name, json.dumps(args), kernel)


NO_SHAPES = "shapes are not recorded: record with record_shapes=True"
NO_SIZES = "the profile does not record the sizes of its inputs"
MISFIT = "the recorded sizes do not fit together"
UNEQUAL = "attention over sequences of unequal length: the lengths are not in the profile"

OFFSETS = ("int", [3])
BF16 = "c10::BFloat16"
FP8 = "c10::Float8_e4m3fn"


@pytest.mark.parametrize(
    "cost,flops,n_bytes",
    [
        # 2·m·k·n, and 4 bytes for each of 2·3 + 3·5 + 2·5 numbers.
        (call("aten::mm", [2, 3], [3, 5]), 60, 4 * 31),
        # The same with the out argument that compiled code passes: it is written, not read.
        (call("aten::mm", [2, 3], [3, 5], [2, 5]), 60, 4 * 31),
        (call("aten::addmm", [5], [2, 3], [3, 5], "1", "1"), 60, 4 * 36),
        (call("aten::bmm", (BF16, [7, 2, 3]), (BF16, [7, 3, 5])), 420, 2 * 7 * 31),
        (call("aten::linear", [4, 2, 3], [5, 3], [5]), 240, 4 * (24 + 15 + 5 + 40)),
        (call("aten::mv", [4, 3], [3]), 24, 4 * (12 + 3 + 4)),
        (
            call("aten::_int_mm", ("signed char", [16, 32]), ("signed char", [32, 8])),
            8192,
            512 + 256 + 4 * 128,
        ),
        # fp8 in, bf16 (15) out; scales of 4 bytes.
        (
            call("aten::_scaled_mm", (FP8, [16, 32]), (FP8, [32, 8]), [], [], None, None, "15", "False"),
            8192,
            512 + 256 + 4 + 4 + 2 * 128,
        ),
        # Two 4-bit numbers a byte: 32 bytes a row are 64 numbers.
        (
            call("aten::_scaled_mm", ("c10::Float4_e2m1fn_x2", [16, 32]), ("c10::Float4_e2m1fn_x2", [32, 8])),
            16384,
            512 + 256 + 2 * 128,
        ),
        # 8×8 points of 6 channels, each of 4·3·3 products; a stride of 2 makes 4×4 of them.
        (
            call("aten::cudnn_convolution", [2, 4, 8, 8], [6, 4, 3, 3], "[1, 1]", "[1, 1]", "[1, 1]", "1"),
            2 * 2 * 64 * 6 * 4 * 9,
            4 * (512 + 216 + 2 * 6 * 64),
        ),
        (
            call("aten::cudnn_convolution", [2, 4, 8, 8], [6, 4, 3, 3], "[1, 1]", "[2, 2]", "[1, 1]", "1"),
            2 * 2 * 16 * 6 * 4 * 9,
            4 * (512 + 216 + 2 * 6 * 16),
        ),
        # Four groups: a weight sees one channel of the input.
        (
            call("aten::cudnn_convolution", [2, 4, 8, 8], [4, 1, 3, 3], "[1, 1]", "[1, 1]", "[1, 1]", "4"),
            2 * 2 * 64 * 4 * 9,
            4 * (512 + 36 + 512),
        ),
        # Queries of 8 heads share 2 heads of keys and values: [batch, length, heads, size].
        (
            call(
                "aten::_flash_attention_forward",
                (BF16, [2, 16, 8, 4]),
                (BF16, [2, 32, 2, 4]),
                (BF16, [2, 32, 2, 4]),
                None,
                None,
                "16",
                "32",
                "0.",
                "False",
            ),
            2 * 2 * (2 * 8) * 16 * 32 * 4,
            2 * (1024 + 2 * 512 + 1024),
        ),
    ],
)
def test_costs_on_matrix_units(cost: Cost, flops: int, n_bytes: int) -> None:
    assert (cost.flops, cost.bytes, cost.reason) == (flops, n_bytes, None)
    assert cost.is_matrix


def grouped_backward(mask: str) -> Cost:
    places = ("[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4", mask)
    return call("aten::convolution_backward", [2, 4, 8, 8], [2, 4, 8, 8], [4, 1, 3, 3], *places)


def test_a_grouped_convolution_counts_per_group_in_backward_too() -> None:
    """Forward is 2·2·64·4·9 = 9,216. torch's counter forgets the groups in the gradient of the weight."""
    assert grouped_backward("[True, False, False]").flops == 9216
    assert grouped_backward("[False, True, False]").flops == 9216
    both = grouped_backward("[True, True, True]")
    assert both.flops == 2 * 9216
    # Reads gradient, image and weight; writes two of them, and a number for each channel.
    assert both.bytes == 4 * (512 + 512 + 36 + 512 + 36 + 4)


def test_backward_of_attention_computes_the_scores_again() -> None:
    inputs = [[2, 4, 16, 8]] * 5 + [[2, 4, 16]]
    found = call("aten::_scaled_dot_product_flash_attention_for_cpu_backward", *inputs, "0.", "True")
    once = 2 * (2 * 4) * 16 * 16 * 8
    assert (found.flops, found.again_flops, found.causal) == (5 * once, once, True)


@pytest.mark.parametrize(
    "cost,family,flops,n_bytes",
    [
        (call("aten::add", [4, 8], [4, 8], "1"), "elementwise", 32, 3 * 128),
        (call("aten::add_", [4, 8], [8], "1"), "elementwise", 32, 128 + 32 + 128),
        # A number that was passed as a tensor of doubles does not make the result one.
        (call("aten::mul", (BF16, [4, 8]), ("double", [])), "elementwise", 32, 64 + 8 + 64),
        (call("aten::eq", [4, 8], [4, 8]), "elementwise", 0, 2 * 128 + 32),
        (call("aten::add_", ("long int", [9]), ("long int", []), "1"), "elementwise", 0, 72 + 8 + 72),
        (call("aten::where", ("bool", [4, 8]), [4, 8], [4, 1]), "elementwise", 0, 32 + 128 + 16 + 128),
        (call("aten::addcmul_", [8], [8], [8], "0.1"), "elementwise", 24, 4 * 32),
        (call("aten::native_dropout", [8], "0.1", "True"), "elementwise", 8, 32 + 32 + 8),
        (call("aten::fill_", [4, 8], "0"), "copy", 0, 128),
        (call("aten::copy_", (BF16, [4, 8]), [4, 8], "False"), "copy", 0, 64 + 128),
        (call("aten::sum", [4, 8], "[1]", "False", None), "reduction", 32, 128 + 16),
        (call("aten::sum", [4, 8], None), "reduction", 32, 128 + 4),
        (call("aten::mean", [4, 8, 2], "[-1, 0]", "True", None), "reduction", 64, 256 + 32),
        (call("aten::amax", [4, 8], "[-1]", "True"), "reduction", 0, 128 + 16),
        (call("aten::_softmax", [4, 8], "-1", "False"), "reduction", 5 * 32, 256),
        (
            call("aten::max_pool2d_with_indices", [1, 2, 8, 8], "[2, 2]", "[2, 2]", "[0, 0]"),
            "reduction",
            128,
            512 + 32 * 12,
        ),
        (call("aten::native_layer_norm", [4, 8], "[8]", [8], [8], "1e-5"), "normalisation", 7 * 32, 256 + 64),
        (
            call("aten::cudnn_batch_norm_backward", [2, 4, 8], [2, 4, 8], [4]),
            "normalisation",
            14 * 64,
            3 * 256 + 48,
        ),
        # Three of a hundred rows of 16 numbers, and three numbers of rows.
        (call("aten::embedding", [100, 16], ("long int", [3])), "indexing", 0, 24 + 2 * 3 * 64),
        (call("aten::index_select", [100, 16], "0", ("long int", [3])), "indexing", 0, 24 + 2 * 3 * 64),
        (
            call("aten::embedding_dense_backward", [3, 16], ("long int", [3]), "100", "-1", "False"),
            "indexing",
            48,
            192 + 24 + 6400,
        ),
    ],
)
def test_costs_beside_matrix_units(cost: Cost, family: str, flops: int, n_bytes: int) -> None:
    assert (cost.family, cost.flops, cost.bytes, cost.reason) == (family, flops, n_bytes, None)


def test_what_was_expanded_is_read_once() -> None:
    args = {
        "Input Dims": [[4, 8], [4, 8]],
        "Input type": ["float", "float"],
        "Input Strides": [[8, 1], [0, 1]],
    }
    assert cost_of("aten::copy_", json.dumps(args), "").bytes == 4 * (32 + 8)


def lists(name: str, *sizes: list[list[int]], kernel: str) -> Cost:
    args = {
        "Input Dims": list(sizes),
        "Input type": ["TensorList"] * len(sizes),
        "Concrete Inputs": [""] * len(sizes),
    }
    return cost_of(name, json.dumps(args), kernel)


def test_lists_of_tensors_take_their_type_from_the_kernel() -> None:
    two = [[10, 10], [20]]
    kernel = (
        "void at::native::multi_tensor_apply_kernel<at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>>"
    )
    # Reads two lists of 120 numbers, writes one.
    assert lists("aten::_foreach_add_", two, two, kernel=kernel).bytes == 3 * 480
    # Parameters, gradients and two states are read; all but gradients written.
    adam = lists("aten::_fused_adamw_", two, two, two, two, [], kernel=kernel)
    assert (adam.family, adam.flops, adam.bytes, adam.type) == ("optimizer", 15 * 120, 7 * 480, "float")
    halves = lists(
        "aten::cat", two, kernel="CatArrayBatchedCopy_aligned16_contig<OpaqueType<2u>, unsigned int>"
    )
    assert (halves.flops, halves.bytes) == (0, 2 * 240)
    silent = lists("aten::_foreach_add_", two, two, kernel="some_kernel")
    assert (silent.flops, silent.bytes) == (120, None)
    assert "type of the elements" in str(silent.reason)


@pytest.mark.parametrize(
    "cost,reason",
    [
        (cost_of("aten::mm", None, "gemm"), NO_SHAPES),
        (cost_of("aten::mm", '{"Ev Idx": null}', "gemm"), NO_SHAPES),
        (call("aten::mm", [2, 3], [4, 5]), MISFIT),
        (call("aten::mm", "1", [4, 5]), NO_SIZES),
        (call("aten::add", [2, 3], [4, 5], "1"), MISFIT),
        (
            call("aten::cudnn_convolution", [2, 4, 8, 8], [6, 4, 3, 3], "", "", "", "1", concrete=False),
            "the profile does not record the plain arguments",
        ),
        (
            call("aten::_flash_attention_forward", [40, 8, 4], [40, 8, 4], [40, 8, 4], OFFSETS, OFFSETS),
            UNEQUAL,
        ),
        (
            call("aten::_efficient_attention_forward", *[[1, 40, 8, 4]] * 3, None, OFFSETS, OFFSETS),
            UNEQUAL,
        ),
        (
            call("aten::_grouped_mm", [8, 4], [2, 4, 4]),
            "a grouped matrix product: the sizes of its groups are not in the profile",
        ),
        (
            lists("aten::_foreach_mul_", [], kernel="k"),
            "the profile does not record the sizes of this list of tensors",
        ),
        (
            cost_of(
                "aten::addmm", json.dumps({"Input Dims": [[9, 4], [9, 9], [9, 4]]}), "cusparse::csrmm_alg1"
            ),
            "a product with a sparse matrix: how much that stores is not in the profile",
        ),
        (call("aten::sort", [8]), "the passes of a sort are not in the profile"),
        (call("aten::index", [8, 8], None), "what it touches depends on the data"),
        (call("triton_poi_fused_add_0", [8]), "a generated kernel: what it computes is not in the profile"),
        (call("my_library::fused_thing", [8]), "an operator of another library"),
        (call("aten::grid_sampler_2d", [8]), "no formula for this operator"),
        (cost_of(None, None, "kernel"), "launched outside any operator"),
        (
            call("aten::add", ("mystery", [8]), ("mystery", [8])),
            "elements of the type 'mystery' are not known",
        ),
        (call("aten::mm", ["a"], [1]), NO_SIZES),
    ],
)
def test_what_is_unknown_says_why(cost: Cost, reason: str) -> None:
    assert (cost.flops, cost.bytes, cost.reason) == (None, None, reason)
