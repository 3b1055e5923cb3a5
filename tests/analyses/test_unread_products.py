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

    def number_nodes(self, first: int) -> Head:
        """Gives each operator drawn so far a number of autograd, from this one on."""
        for number, event in enumerate(self.events_named("aten::"), first):
            event["args"]["Sequence number"] = number
        return self

    def events_named(self, begins: str) -> list[dict[str, Any]]:
        return [event for event in self.events if str(event.get("name", "")).startswith(begins)]

    def node(self, name: str, sequence: int, inside: str = "aten::mm", work: int = 0) -> Head:
        """A node of the backward pass, on its own thread, with an operator that works as long as this."""
        args = {"Sequence number": sequence, "Fwd thread id": 1}
        self.op(f"autograd::engine::evaluate_function: {name}", self.at, 8, args=args, thread=2)
        self.op(inside, self.at + 1, 6, thread=2)
        self.number += 1
        self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number, thread=2)
        self.kernel("k", 100 * self.at + 1000, work, corr=self.number)
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
    assert drawing.rows(tmp_path) == [
        UnreadProduct(1, None, "4 × 32 × 1000", read, 100_000, 100 / 405, 0, 0, 0, 0)
    ]


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


def picked(drawing: Head, rows: int) -> Head:
    """Chances of chosen words of so many rows; the last eight of them are read."""
    logits, chosen = [4, rows, 1000], [4, rows, 1]
    drawing.run("aten::to", [logits, [], []], "6", work=30).run("aten::log_softmax", [logits], "-1", work=20)
    drawing.run("aten::unsqueeze", [[4, rows]], "2").run("aten::gather", [logits, [], chosen], "-1", work=1)
    drawing.run("aten::select", [chosen, [], []], "2", "0")
    return drawing.run("aten::slice", [[4, rows]], "1", "-8", WHOLE, "1")


def test_numbers_are_picked_from_all_rows_and_few_are_read(tmp_path: Path) -> None:
    shifted = head().run("aten::slice", [LOGITS, [], [], [], []], "1", "0", "-1", "1")
    (row,) = picked(shifted, 31).run("aten::exp", [[4, 8]], work=1).rows(tmp_path)
    assert (row.read_share, row.elementwise_ns, row.cut_ns) == (8 / 32, 51_000, 0)


def test_gradients_of_what_is_picked(tmp_path: Path) -> None:
    drawing = picked(head(), 32).run("aten::exp", [[4, 8]], work=1).number_nodes(7)
    # Numbers from 7 on: two layers, a cast, a softmax, a view of the words, what picks, and the cuts.
    drawing.node("LinearBackward0", 8, work=200).node("LogSoftmaxBackward0", 10, work=40)
    drawing.node("GatherBackward0", 12, "aten::zero_", work=9).node("ExpBackward0", 15, work=3)
    (row,) = drawing.rows(tmp_path)
    assert (row.read_share, row.backward_ns, row.elementwise_ns) == (0.25, 200_000, 100_000)


@pytest.mark.parametrize(
    "name,dims,read",
    [
        ("aten::mean", [[4, 31]], 31 / 32),
        ("aten::sum", [[4, 31, 1000]], 31 / 32),
        ("aten::mul", [[4, 31]], 8 / 32),
    ],
)
def test_what_else_reads_them(name: str, dims: list[Any], read: float, tmp_path: Path) -> None:
    shifted = head().run("aten::slice", [LOGITS, [], [], [], []], "1", "0", "-1", "1")
    (row,) = picked(shifted, 31).run(name, dims, work=1).rows(tmp_path)
    assert row.read_share == read


def test_all_that_was_picked_is_read(tmp_path: Path) -> None:
    logits = head().run("aten::log_softmax", [LOGITS], "-1")
    picks = logits.run("aten::gather", [LOGITS, [], [4, 32, 1]], "-1")
    assert picks.run("aten::mean", [[4, 32, 1]]).rows(tmp_path) == []


def test_small_products_and_those_without_shapes(tmp_path: Path) -> None:
    small = Head().run("aten::linear", [HIDDEN, [64, 64], []], work=9000)
    small.run("aten::linear", [HIDDEN, WEIGHTS, []], work=100)
    assert small.run("aten::select", [LOGITS, [], []], "1", "-1").rows(tmp_path) == []
    bare = (
        Head().op("aten::linear", 0, 8).launch("cudaLaunchKernel", 2, 2, corr=1).kernel("gemm", 9, 50, corr=1)
    )
    bare.op("aten::select", 20, 5)
    assert list(stepscope.open(bare.write(tmp_path / "bare.json")).table("unread_products")) == []


def test_what_the_backward_pass_and_casts_do_to_all_rows(tmp_path: Path) -> None:
    drawing = head().run("aten::to", [LOGITS, []], work=20).run("aten::mul", [LOGITS, []], work=30)
    drawing.run("aten::slice", [LOGITS, [], []], "1", "0", "8", "1").run("aten::exp", [[4, 8, 1000]], work=9)
    drawing.number_nodes(40)
    drawing.node("ExpBackward0", 45, work=7).node("SliceBackward0", 44, "aten::zero_", work=11)
    drawing.node("MulBackward0", 43, work=6).node("ToCopyBackward0", 42, work=5)
    drawing.node("MmBackward0", 41, work=200).node("MmBackward0", 40, work=1000)
    (row,) = drawing.rows(tmp_path)
    assert (row.read_share, row.device_ns, row.backward_ns) == (0.25, 100_000, 200_000)
    assert row.elementwise_ns == (20 + 30 + 6 + 5) * 1000
    assert (row.cut_ns, row.zeros_ns) == (11_000, 11_000)


def test_the_gradient_of_a_cut_is_more_than_its_zeros(tmp_path: Path) -> None:
    drawing = head().run("aten::select", [LOGITS, [], []], "1", "-1").number_nodes(7)
    drawing.node("SelectBackward0", 9, "aten::copy_", work=4)
    (row,) = drawing.rows(tmp_path)
    assert (row.backward_ns, row.elementwise_ns, row.cut_ns, row.zeros_ns) == (0, 0, 4_000, 0)


def test_casts_of_weights_do_not_shrink_with_the_rows(tmp_path: Path) -> None:
    drawing = head().run("aten::select", [LOGITS, [], []], "1", "-1").number_nodes(7)
    (row,) = drawing.node("ToCopyBackward0", 8, work=4).rows(tmp_path)
    assert row.backward_ns == 0


def test_a_copy_to_the_host_reads_all_rows(tmp_path: Path) -> None:
    drawing = head().run("aten::to", [LOGITS, []])
    drawing.launch("cudaMemcpyAsync", drawing.at - 7, 2, corr=99)
    drawing.memcpy("DtoH", 9000, 5, corr=99)
    drawing.run("aten::select", [LOGITS, [], []], "1", "-1")
    assert drawing.rows(tmp_path) == []
