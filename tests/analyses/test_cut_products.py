from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.cut_products import CutProduct

PRODUCT = 4000


class Head(Drawing):
    """A step without shapes: a layer, the head of a language model, and what takes its logits; in µs."""

    at, number = 0, 0

    def run(self, name: str, work: int = 0, kernel: str = "k", **args: Any) -> Head:
        self.number += 1
        self.op(name, self.at, 8, args={"Sequence number": 40 + self.number, **args})
        return self._works(work, kernel, thread=1)

    def node(self, name: str, of: int, *parts: tuple[str, int]) -> Head:
        """A node of the backward pass on its own thread, with operators that work as long as these."""
        args = {"Sequence number": 40 + of, "Fwd thread id": 1}
        begin, dur = self.at, 10 * len(parts)
        for inside, work in parts:
            self.op(inside, self.at + 1, 8, thread=2)
            self._works(work, "k", thread=2)
        self.op(f"autograd::engine::evaluate_function: {name}", begin, dur, args=args, thread=2)
        return self

    def _works(self, work: int, kernel: str, thread: int) -> Head:
        if work:
            self.launch("cudaLaunchKernel", self.at + 3, 2, corr=self.at + 1, thread=thread)
            self.kernel(kernel, 100 * self.at + 1000, work, corr=self.at + 1)
        self.at += 10
        return self

    def rows(self, folder: Path) -> list[CutProduct]:
        self.mark(1, 0, self.at)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("cut_products"))


def head(product: int = PRODUCT, kernel: str = "nvjet_tst_192x192_TNN", args: Any = None) -> Head:
    return Head().run("aten::linear", 5000).run("aten::linear", product, kernel, **(args or {}))


def test_what_follows_the_cut_is_too_short_to_read_all(tmp_path: Path) -> None:
    (row,) = head().run("aten::select").run("aten::softmax", 6).run("aten::add_", 1).rows(tmp_path)
    assert (row.cut, row.device_ns, row.backward_ns) == ("aten::select", 4_000_000, 0)
    assert row.read_most == pytest.approx(5 / 20)  # of the 20 µs that reading all takes at least


def test_casts_before_the_cut_read_all_of_it(tmp_path: Path) -> None:
    drawing = head().run("aten::view").run("aten::to", 300).run("aten::slice").run("aten::argmax", 5)
    (row,) = drawing.rows(tmp_path)
    assert row.elementwise_ns == 300_000
    assert row.read_most == pytest.approx(4 / 20)


@pytest.mark.parametrize(
    "drawing",
    [
        head().run("aten::slice").run("aten::cross_entropy_loss", 700),
        head().run("aten::softmax", 5).run("aten::select"),
        head().run("aten::select").run("aten::argmax", 18),
        head(product=900).run("aten::select").run("aten::argmax", 1),
        head(kernel="ampere_sgemm_128x128_tn").run("aten::select").run("aten::argmax", 5),
        head(args={"Input Dims": [[4, 32, 64], [1000, 64]]}).run("aten::select").run("aten::argmax", 5),
        head().run("aten::argmax", 5),
    ],
    ids=["loss", "not cut first", "long", "few rows", "no matrix units", "shapes", "not cut"],
)
def test_what_may_be_read_as_a_whole(drawing: Head, tmp_path: Path) -> None:
    assert drawing.rows(tmp_path) == []


def test_kernels_outside_of_operators_may_read_it(tmp_path: Path) -> None:
    drawing = head().run("aten::slice")
    drawing.launch("cudaLaunchKernel", drawing.at, 2, corr=999).kernel("loss", 90_000, 700, corr=999)
    assert drawing.run("aten::add").rows(tmp_path) == []


def trained(zeros: int, copied: int) -> Head:
    """Training with a loss of a part of the result, whose gradient is copied into zeros."""
    drawing = head().run("aten::slice").run("aten::cross_entropy_loss", 700)
    drawing.node("NllLossBackward0", 4, ("aten::nll_loss_backward", 100))
    drawing.node("SliceBackward0", 3, ("aten::zero_", zeros), ("aten::copy_", copied))
    return drawing.node("MmBackward0", 2, ("aten::mm", 8000)).node("MmBackward0", 1, ("aten::mm", 9000))


def test_in_training_the_gradient_of_the_cut_tells(tmp_path: Path) -> None:
    (row,) = trained(800, 400).rows(tmp_path)
    assert row.read_most == pytest.approx(1.4 * 0.25)
    assert (row.backward_ns, row.cut_ns, row.zeros_ns) == (8_000_000, 1_200_000, 800_000)


def test_a_loss_of_all_but_the_last_position(tmp_path: Path) -> None:
    assert trained(800, 1590).rows(tmp_path) == []


def test_zeros_that_are_too_few_are_of_another_tensor(tmp_path: Path) -> None:
    assert trained(10, 5).rows(tmp_path) == []


def test_cuts_of_the_same_result_add_up(tmp_path: Path) -> None:
    drawing = head().run("aten::slice").run("aten::slice").run("aten::mul", 700)
    for of in (4, 3):
        drawing.node("SliceBackward0", of, ("aten::zero_", 800), ("aten::copy_", 800))
    assert drawing.node("MmBackward0", 2, ("aten::mm", 8000)).rows(tmp_path) == []
