from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.unread_products import UnreadProduct

HIDDEN, WEIGHTS, LOGITS = [4, 32, 64], [1000, 64], [4, 32, 1000]
WHOLE = str(2**63 - 1)


class Head(Drawing):
    """A step with a layer, the head of a language model, and what takes its logits."""

    at, number = 0, 0

    def run(self, name: str, dims: list[Any], *given: str, work: int = 0) -> Head:
        args = {"Input Dims": dims, "Concrete Inputs": ["", *given]}
        self.op(name, self.at, 8, args=args)
        if work:
            self.number += 1
            self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number)
            self.kernel("gemm", 100 * self.at + 1000, work, corr=self.number)
        self.at += 10
        return self

    def rows(self, folder: Path) -> list[UnreadProduct]:
        self.mark(1, 0, self.at)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("unread_products"))


def head() -> Head:
    layer = Head().run("aten::linear", [HIDDEN, [64, 64], []], work=300)
    return layer.run("aten::linear", [HIDDEN, WEIGHTS, []], work=100)


@pytest.mark.parametrize(
    "name,given,read",
    [
        ("aten::select", ("1", "-1"), 1 / 32),
        ("aten::slice", ("1", "-1", WHOLE, "1"), 1 / 32),
        ("aten::slice", ("1", "0", "16", "1"), 0.5),
        ("aten::slice", ("0", "0", WHOLE, "2"), 0.5),
    ],
)
def test_only_a_part_is_read(name: str, given: tuple[str, ...], read: float, tmp_path: Path) -> None:
    drawing = head().run(name, [LOGITS, [], []], *given).run("aten::softmax", [[4, 1000]], work=5)
    assert drawing.rows(tmp_path) == [UnreadProduct(1, None, "4 × 32 × 1000", read, 100_000, 100 / 405)]


def test_parts_add_up(tmp_path: Path) -> None:
    drawing = head()
    for position in ("3", "4"):
        drawing.run("aten::select", [LOGITS, [], []], "1", position)
    (row,) = drawing.rows(tmp_path)
    assert row.read_share == 2 / 32


@pytest.mark.parametrize(
    "name,given",
    [
        ("aten::slice", ("1", "0", WHOLE, "1")),
        ("aten::select", ("2", "7")),
        ("aten::select", ("-1", "7")),
        ("aten::slice", ("1", "0", WHOLE, "0")),
        ("aten::select", ()),
        ("aten::to", ()),
    ],
)
def test_what_is_read_as_a_whole(name: str, given: tuple[str, ...], tmp_path: Path) -> None:
    assert head().run(name, [LOGITS, [], []], *given).rows(tmp_path) == []


def test_a_loss_of_all_logits_beside_the_last(tmp_path: Path) -> None:
    drawing = head().run("aten::select", [LOGITS, [], []], "1", "-1")
    assert drawing.run("aten::log_softmax", [LOGITS], "2").rows(tmp_path) == []


def test_small_products_and_those_without_shapes(tmp_path: Path) -> None:
    small = Head().run("aten::linear", [HIDDEN, [64, 64], []], work=9000)
    small.run("aten::linear", [HIDDEN, WEIGHTS, []], work=100)
    assert small.run("aten::select", [LOGITS, [], []], "1", "-1").rows(tmp_path) == []
    bare = (
        Head().op("aten::linear", 0, 8).launch("cudaLaunchKernel", 2, 2, corr=1).kernel("gemm", 9, 50, corr=1)
    )
    bare.op("aten::select", 20, 5)
    assert list(stepscope.open(bare.write(tmp_path / "bare.json")).table("unread_products")) == []
