from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.analyses.test_written_pairs import Pairs

import stepscope
from stepscope.analyses.diagonal_products import DiagonalProducts

SQUARE = [64, 64]


def made(drawing: Pairs, name: str = "diag", *dims: Any) -> Pairs:
    drawing.run(name, *(dims or ([64], [])), work=5, called="made")
    if name == "diag":
        drawing.op("aten::diag_embed", drawing.at - 10 + 1, 4)
    return drawing


def rows_of(folder: Path, drawing: Pairs) -> list[DiagonalProducts]:
    drawing.mark(1, 0, drawing.at)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("diagonal_products"))


@pytest.mark.parametrize("shapes", [True, False])
def test_rows_and_columns_are_scaled_by_products(tmp_path: Path, shapes: bool) -> None:
    drawing = made(Pairs(shapes=shapes)).run("matmul", SQUARE, SQUARE, work=100, called="left")
    drawing.run("matmul", SQUARE, SQUARE, work=100, called="right").run("linear", [9, 64], [64, 64], work=30)
    drawing.gradient("MmBackward0", "right", 200).gradient("DiagEmbedBackward0", "made", 10)
    (row,) = rows_of(tmp_path, drawing)
    assert (row.products, row.size) == (2, 64 if shapes else None)
    assert (row.made_ns, row.products_ns, row.backward_ns) == (5_000, 200_000, 210_000)


@pytest.mark.parametrize(
    "drawing",
    [
        made(Pairs()).run("matmul", [9, 32], [32, 9], work=100),
        made(Pairs()).run("add", SQUARE, SQUARE).run("matmul", SQUARE, SQUARE, work=100),
        Pairs().run("diag", SQUARE, []).run("matmul", SQUARE, SQUARE, work=100),  # of a matrix: a vector
    ],
)
def test_no_row(tmp_path: Path, drawing: Pairs) -> None:
    assert rows_of(tmp_path, drawing) == []


def test_one_for_each_of_a_batch(tmp_path: Path) -> None:
    drawing = made(Pairs(), "diag_embed", [8, 64], []).run("bmm", [8, 64, 64], [8, 64, 16], work=100)
    (row,) = rows_of(tmp_path, drawing)
    assert (row.size, row.products_ns) == (64, 100_000)
