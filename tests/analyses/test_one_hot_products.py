from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.one_hot_products import OneHotProduct

ROWS, SIZE, WIDTH = 4096, 512, 64


class Lookup(Drawing):
    """A step that writes one-hot rows and multiplies a table with them."""

    at, number = 0, 0

    def run(self, name: str, *dims: list[int], work: int = 0, thread: int = 100) -> Lookup:
        self.op(name, self.at, 8, args={"Input Dims": dims}, thread=thread)
        if work:
            self.number += 1
            self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number, thread=thread)
            self.kernel("gemm", 100 * self.at + 1000, work, corr=self.number)
        self.at += 10
        return self

    def rows(self, folder: Path) -> list[OneHotProduct]:
        self.mark(1, 0, self.at)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("one_hot_products"))


def scattered(*before: int) -> Lookup:
    """One-hot rows, filled with zeros and a single one."""
    filled = Lookup().run("aten::fill_", [*before, SIZE], [], work=30)
    return filled.run("aten::scatter_", [*before, SIZE], [], [*before, 1], [], work=5)


@pytest.mark.parametrize("before", [(ROWS,), (8, 512)])
def test_a_product_a_conversion_and_its_gradient(before: tuple[int, ...], tmp_path: Path) -> None:
    drawing = scattered(*before).run("aten::copy_", [*before, SIZE], [*before, SIZE], [], work=7)
    drawing.run("aten::mm", [ROWS, SIZE], [SIZE, WIDTH], work=100)
    drawing.run("aten::mm", [SIZE, ROWS], [ROWS, WIDTH], work=90, thread=7)
    assert drawing.rows(tmp_path) == [
        OneHotProduct(1, None, ROWS, SIZE, calls=1, product_ns=100_000, gradient_ns=90_000, filling_ns=42_000)
    ]


def test_a_layer_without_a_gradient(tmp_path: Path) -> None:
    (row,) = scattered(ROWS).run("aten::addmm", [WIDTH], [ROWS, SIZE], [SIZE, WIDTH], work=100).rows(tmp_path)
    assert (row.product_ns, row.gradient_ns) == (100_000, 0)


@pytest.mark.parametrize(
    "name,dims",
    [
        ("aten::mm", ([ROWS, WIDTH], [WIDTH, SIZE])),  # logits, of the shape of the targets
        ("aten::bmm", ([ROWS, SIZE], [SIZE, WIDTH])),
        ("aten::mm", ([SIZE, ROWS], [ROWS, WIDTH])),
    ],
)
def test_other_products(name: str, dims: tuple[Any, ...], tmp_path: Path) -> None:
    assert scattered(ROWS).run(name, *dims, work=100).rows(tmp_path) == []


def test_gradients_of_logits_have_the_shape_of_one_hot_targets(tmp_path: Path) -> None:
    drawing = scattered(ROWS).run("aten::mm", [ROWS, WIDTH], [WIDTH, SIZE], work=100)
    drawing.run("aten::mm", [ROWS, SIZE], [SIZE, WIDTH], work=100, thread=7)
    assert drawing.rows(tmp_path) == []


def test_probabilities_are_not_one_hot(tmp_path: Path) -> None:
    drawing = scattered(ROWS).run("aten::_softmax", [ROWS, SIZE], [], [], work=9)
    assert drawing.run("aten::mm", [ROWS, SIZE], [SIZE, WIDTH], work=100).rows(tmp_path) == []


def test_several_numbers_in_each_row_and_no_shapes(tmp_path: Path) -> None:
    two = Lookup().run("aten::scatter_", [ROWS, SIZE], [], [ROWS, 2], [], work=5)
    assert two.run("aten::mm", [ROWS, SIZE], [SIZE, WIDTH], work=100).rows(tmp_path) == []
    bare = Lookup().op("aten::scatter_", 0, 8).op("aten::mm", 10, 8)
    assert list(stepscope.open(bare.write(tmp_path / "bare.json")).table("one_hot_products")) == []
