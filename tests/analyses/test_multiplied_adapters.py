from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.multiplied_adapters import MultipliedAdapters

LAYER = ("aten::matmul", "aten::mul", "aten::add", "aten::linear")
THIN, WHOLE, OUTER = [[64, 4], [4, 32]], [[64, 32], [64, 32]], [[2, 8, 32], [64, 32]]
SHAPES = {0: THIN, 1: [[64, 32], []], 2: WHOLE, 3: OUTER}
NODE = "autograd::engine::evaluate_function: "


def drawn(
    *names: str, dims: dict[int, Any] | None = None, kernels: dict[str, float] | None = None
) -> Drawing:
    """A step with these operators, one every 10 µs, with kernels of 3 µs; numbers of autograd from 100 on."""
    drawing = Drawing().mark(1, 0, 10 * len(names) + 500)
    for number, name in enumerate(names):
        at = 10 * number + 5
        args = {"Sequence number": 100 + number}
        drawing.op(name, at, 8, args=args | ({"Input Dims": dims[number]} if dims else {}))
        drawing.launch("cudaLaunchKernel", at + 2, 2, corr=number + 1)
        drawing.kernel("some_kernel", at + 3, (kernels or {}).get(name, 3), corr=number + 1)
    return drawing


def rows(folder: Path, drawing: Drawing) -> list[MultipliedAdapters]:
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("multiplied_adapters"))


def test_a_matrix_as_large_as_the_weights(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, drawn(*LAYER, dims=SHAPES))
    # The sum writes and reads 3 × 64 × 32 numbers in 3 µs; 16 rows have 32 inputs and 64 outputs, two passes.
    beside_ns = round(3_000 / 3 * 16 * (32 + 64) / (64 * 32) * 2)
    assert row == MultipliedAdapters(None, 1, 4, 28_000, 9_000, 0, 0, beside_ns)


def test_its_gradients(tmp_path: Path) -> None:
    drawing = drawn(*LAYER, "aten::relu", dims=SHAPES | {4: [[2, 8, 64]]})
    nodes = {"ReluBackward0": 104, "MmBackward0": 103, "AddBackward0": 102, "MulBackward0": 101}
    for number, (node, sequence) in enumerate(
        [*nodes.items(), ("MmBackward0", 100), ("AccumulateGrad", None)]
    ):
        at, corr = 100 + 20 * number, 50 + number
        args = {} if sequence is None else {"Sequence number": sequence}
        drawing.op(NODE + node, at, 15, args=args, tid=2)
        drawing.launch("cudaLaunchKernel", at + 2, 2, corr=corr, tid=2).kernel("k", at + 5, 4, corr=corr)
    (row,) = rows(tmp_path, drawing)
    assert (row.backward_ns, row.layer_backward_ns) == (3 * 4_000, 4_000)
    assert row.beside_ns == round(3_000 / 3 * 16 * (32 + 64) / (64 * 32) * 6)


def test_without_shapes_the_time_of_the_product_tells(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, drawn(*LAYER))
    assert (row.calls, row.rank, row.beside_ns) == (1, None, None)
    assert rows(tmp_path, drawn(*LAYER, kernels={"aten::matmul": 8})) == [], "it computes more than it writes"
    (row,) = rows(tmp_path, drawn("aten::mm", "aten::add", "aten::linear"))
    assert row.device_ns == 6_000


@pytest.mark.parametrize(
    "names",
    [
        ("aten::linear", "aten::matmul", "aten::matmul", "aten::mul", "aten::add", "aten::linear"),
        ("aten::linear", "aten::linear", "aten::matmul", "aten::add", "aten::linear"),
        ("aten::matmul", "aten::mul", "aten::add", "aten::layer_norm", "aten::linear"),
        ("aten::matmul", "aten::gelu", "aten::add", "aten::linear"),
    ],
)
def test_adapters_beside_their_layers_and_other_products(names: tuple[str, ...], tmp_path: Path) -> None:
    assert rows(tmp_path, drawn(*names)) == []


def test_one_adapted_layer_after_another(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, drawn(*LAYER, *LAYER, *LAYER))
    assert row.calls == 3


@pytest.mark.parametrize(
    "changed",
    [{0: [[64, 32], [32, 32]]}, {3: [[2, 8, 32], [16, 32]]}, {0: [[2, 64, 4], [4, 32]]}],
    ids=["of high rank", "other weights", "a batch"],
)
def test_other_sizes(changed: dict[int, Any], tmp_path: Path) -> None:
    assert rows(tmp_path, drawn(*LAYER, dims=SHAPES | changed)) == []
