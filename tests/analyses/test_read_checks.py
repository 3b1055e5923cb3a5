from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.read_checks import ReadCheck


class Step(Drawing):
    """A step of operators that take 10 µs each, on the host and on the device, and are 20 µs apart."""

    at, number = 0, 0

    def run(self, *names: str, sequence: int | None = None, thread: int = 1) -> Step:
        for name in names:
            args = {} if sequence is None else {"Sequence number": sequence}
            self.op(name, self.at, 10, thread=thread, args=args)
            self.number += 1
            self.launch("cudaLaunchKernel", self.at + 2, 2, corr=self.number, thread=thread)
            self.kernel("k", self.at + 5, 10, corr=self.number)
            self.at += 20
        return self

    def node(self, name: str, sequence: int) -> Step:
        return self.run(f"autograd::engine::evaluate_function: {name}", sequence=sequence, thread=2)

    def rows(self, folder: Path) -> list[ReadCheck]:
        self.mark(1, 0, self.at)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("read_checks"))


def test_a_check_goes_with_its_read(tmp_path: Path) -> None:
    step = Step().run("aten::linear", "aten::isfinite", "aten::all", "aten::is_nonzero")
    step.run("aten::relu", "aten::isfinite", "aten::all", "aten::is_nonzero")
    # From the start of isfinite() to the end of the read, twice.
    assert step.rows(tmp_path) == [
        ReadCheck(None, True, 2, 6, "aten::all, aten::isfinite", 100_000, 20_000, 60_000)
    ]


def test_a_read_begins_the_next_stretch(tmp_path: Path) -> None:
    step = Step().run("aten::isnan", "aten::any", "aten::item", "aten::gt", "aten::any", "aten::item")
    assert [(row.finite, row.reads, row.ops) for row in step.rows(tmp_path)] == [
        (False, 1, 3),
        (True, 1, 3),
    ]


def test_what_may_be_needed_elsewhere_is_no_part_of_a_check(tmp_path: Path) -> None:
    assert Step().run("aten::mean", "aten::item").rows(tmp_path) == []
    assert Step().run("aten::isfinite", "aten::where", "aten::sum", "aten::item").rows(tmp_path) == []
    assert Step().run("aten::isfinite", "aten::all", "aten::where").rows(tmp_path) == []


def trained(*, with_norm: bool) -> Step:
    """A layer, a norm of its output that is read, and a loss; the backward pass may run the norm's node."""
    step = Step().run("aten::embedding", sequence=7).run("aten::linear", sequence=8)
    step.run("aten::norm", sequence=9).run("aten::item", sequence=10).run("aten::relu", sequence=10)
    step.run("aten::mean", sequence=11).run("aten::ones_like", sequence=12)
    for name, sequence in (("Mean", 11), ("Relu", 10), ("Norm", 9), ("Addmm", 8), ("Embedding", 7)):
        if with_norm or name != "Norm":
            step.node(f"{name}Backward0", sequence)
    return step


def test_what_has_no_part_in_the_loss_goes_with_its_read(tmp_path: Path) -> None:
    (row,) = trained(with_norm=False).rows(tmp_path)
    assert (row.finite, row.reads, row.ops, row.most_often) == (False, 1, 2, "aten::norm")


def test_what_the_loss_depends_on_stays(tmp_path: Path) -> None:
    assert trained(with_norm=True).rows(tmp_path) == []


def test_without_a_backward_pass_nothing_is_known_of_the_loss(tmp_path: Path) -> None:
    step = Step().run("aten::linear", sequence=8).run("aten::norm", sequence=9).run("aten::item", sequence=10)
    assert step.rows(tmp_path) == []


def test_numbers_of_the_host_are_not_read_from_a_device(tmp_path: Path) -> None:
    step = Step().run("aten::isfinite", "aten::all")
    step.op("aten::item", step.at, 5)
    assert step.rows(tmp_path) == []
