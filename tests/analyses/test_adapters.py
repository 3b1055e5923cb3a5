from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.adapters import Adapters

LAYER = ("aten::linear", "aten::to", "aten::linear", "aten::linear", "aten::mul", "aten::add")
WIDE, DOWN, UP = [[2, 7, 64], [64, 64]], [[2, 7, 64], [4, 64]], [[2, 7, 4], [64, 4]]


def rows(folder: Path, *names: str, dims: dict[int, Any] | None = None) -> list[Adapters]:
    """The table of a step with these operators, of 8 µs each with a kernel of 3 µs, one every 10 µs."""
    drawing = Drawing().mark(1, 0, 10 * len(names) + 10)
    for number, name in enumerate(names):
        at = 10 * number + 5
        shapes = {"Input Dims": dims[number]} if dims and number in dims else {}
        drawing.op(name, at, 8, args=shapes).launch("cudaLaunchKernel", at + 2, 2, corr=number + 1)
        if name != "aten::to":
            drawing.kernel("some_kernel", at + 5, 3, corr=number + 1)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("adapters"))


def test_layers_with_adapters(tmp_path: Path) -> None:
    # From the end of the first product to that of the sum: five operators later, one of which does nothing.
    assert rows(tmp_path, *LAYER, "aten::relu", *LAYER) == [Adapters(None, 2, None, 100_000, 24_000)]


def test_shapes_tell_the_rank(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, *LAYER, dims={0: WIDE, 2: DOWN, 3: UP})
    assert row.rank == 4
    turned = ("aten::linear", "aten::matmul", "aten::matmul", "aten::mul", "aten::add")
    (row,) = rows(tmp_path, *turned, dims={0: WIDE, 1: [[2, 7, 64], [64, 8]]})
    assert row.rank == 8
    assert rows(tmp_path, *LAYER, dims={0: WIDE, 2: [[2, 7, 64], [64, 64]]}) == [], "three wide layers"


@pytest.mark.parametrize(
    "names",
    [
        ("aten::linear", "aten::linear", "aten::linear", "aten::mul", "aten::slice", "aten::add"),
        ("aten::linear", "aten::silu", "aten::linear", "aten::mul", "aten::linear", "aten::add"),
        ("aten::linear", "aten::linear", "aten::mul", "aten::add"),
    ],
)
def test_other_layers(names: tuple[str, ...], tmp_path: Path) -> None:
    assert rows(tmp_path, *names) == []


def test_training_needs_them(tmp_path: Path) -> None:
    assert rows(tmp_path, *LAYER, "autograd::engine::evaluate_function: AddmmBackward0") == []
