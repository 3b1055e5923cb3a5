from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.beside_training import BesideTraining


class Steps(Drawing):
    """Training steps, µs by µs: operators of 8 µs with a kernel of 3 µs, one every 10 µs."""

    at, node, number = 0, 0, 0

    def call(self, name: str, *, grows: bool = False, graded: bool = True, thread: int = 1) -> None:
        """An operator; `grows` adds a node to the graph, `graded` is False under no_grad()."""
        self.number += 1
        numbered = {"Sequence number": self.node, "Fwd thread id": 0} if graded else {}
        self.op(name, self.at, 8, thread=thread, args={"External id": self.number, **numbered})
        self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number, thread=thread)
        self.kernel("some_kernel", self.at + 5, 3, corr=self.number)
        self.at += 10
        self.node += grows

    def forward(self, *, layers: int = 4) -> Steps:
        for _ in range(layers):
            self.call("aten::linear", grows=True)
        return self

    def backward(self, *, layers: int = 4) -> Steps:
        for layer in range(layers):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.op(
                name,
                self.at,
                8,
                thread=2,
                args={"Sequence number": self.node - 1 - layer, "Fwd thread id": 1},
            )
            self.number += 1
            self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number, thread=2)
            self.kernel("gemm", self.at + 5, 3, corr=self.number)
            self.at += 10
        return self

    def beside(self, *names: str, times: int = 40, graded: bool = False) -> Steps:
        for _ in range(times):
            for name in names:
                self.call(name, graded=graded)
        return self

    def update(self) -> Steps:
        self.annotation("Optimizer.step#SGD.step", self.at, 8)
        self.at += 10
        return self

    def rows(self, folder: Path) -> list[BesideTraining]:
        folder.mkdir(exist_ok=True)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("beside_training"))


def in_steps(*parts: str, names: tuple[str, ...] = ("aten::norm",), times: int = 40) -> Steps:
    """Two steps of these parts, in this order."""
    drawing = Steps()
    for step in range(2):
        since = drawing.at
        for part in parts:
            if part == "beside":
                drawing.beside(*names, times=times)
            elif part == "beside with gradients on":
                drawing.beside(*names, times=times, graded=True)
            else:
                getattr(drawing, part)()
        drawing.mark(step, since, drawing.at - since)
        drawing.at += 50
    return drawing


@pytest.mark.parametrize(
    "parts",
    [
        ("forward", "backward", "beside"),
        ("forward", "beside", "backward"),
        ("forward", "backward", "beside with gradients on"),
        ("forward", "backward", "forward", "backward", "beside"),
    ],
)
def test_what_no_gradient_depends_on(parts: tuple[str, ...], tmp_path: Path) -> None:
    # 40 operators of 10 µs; the last ends 2 µs earlier.
    (row,) = in_steps(*parts).rows(tmp_path)
    assert (row.stretches, row.ops, row.reads) == (2, 80, 0)
    assert (row.host_ns, row.device_ns) == (2 * 398_000, 2 * 120_000)
    assert (row.network, row.user_frame, row.most_often) == (False, None, "aten::norm")


@pytest.mark.parametrize(
    "parts", [("beside", "forward", "backward"), ("forward", "backward", "beside", "forward", "backward")]
)
def test_what_comes_before_a_loss_may_be_its_input(parts: tuple[str, ...], tmp_path: Path) -> None:
    assert in_steps(*parts).rows(tmp_path) == []


@pytest.mark.parametrize("names", [("aten::mul_", "aten::add_"), ("aten::linear", "aten::relu")])
def test_updates_and_networks_are_needed(names: tuple[str, ...], tmp_path: Path) -> None:
    assert in_steps("forward", "backward", "beside", names=names).rows(tmp_path) == []


def test_a_network_after_the_update_is_no_part_of_a_loss(tmp_path: Path) -> None:
    names = ("aten::linear", "aten::relu")
    (row,) = in_steps("forward", "backward", "update", "beside", names=names).rows(tmp_path)
    assert (row.network, row.before_update, row.stretches, row.ops) == (True, False, 2, 160)
    for parts in (
        ("forward", "backward", "beside", "update"),
        ("beside", "forward", "backward", "update"),
        ("forward", "backward", "update", "beside", "forward", "backward", "update"),
    ):
        assert in_steps(*parts, names=names).rows(tmp_path / "-".join(parts)) == [], parts


def test_few_operators_are_no_row(tmp_path: Path) -> None:
    assert in_steps("forward", "backward", "beside", times=31).rows(tmp_path) == []


def test_reads_are_counted_and_names_come_by_number(tmp_path: Path) -> None:
    names = ("aten::eq", "aten::item", "aten::eq")
    (row,) = in_steps("forward", "backward", "beside", names=names).rows(tmp_path)
    assert (row.reads, row.most_often) == (80, "aten::eq, aten::item")


def test_inference_has_no_training(tmp_path: Path) -> None:
    assert in_steps("forward", "beside").rows(tmp_path) == []


@pytest.mark.parametrize(
    "parts,before",
    [
        (("forward", "backward", "beside", "update"), True),
        (("forward", "backward", "update", "beside"), False),
        (("forward", "beside", "backward", "update"), False),
        (("forward", "backward", "beside"), False),
    ],
)
def test_an_update_may_depend_on_what_comes_right_before(
    parts: tuple[str, ...], before: bool, tmp_path: Path
) -> None:
    (row,) = in_steps(*parts).rows(tmp_path)
    assert (row.stretches, row.before_update) == (2, before)
