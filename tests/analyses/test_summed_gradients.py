from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.summed_gradients import SummedGradients


def drawn(folder: Path, *steps: str) -> list[SummedGradients]:
    """The table of a profile of these steps: a letter for each gradient, + where it is added to another.

    Before each, 10 µs of work are launched; so for each that is added. At | an optimizer updates weights. At
    = is the gradient of a look-up.
    """
    drawing = Drawing()
    number = 0
    for step, gradients in enumerate(steps):
        since = 1000 * step
        drawing.mark(step, since, 990)
        for place, gradient in enumerate(gradients):
            at = since + 20 + 100 * place
            if gradient == "|":
                drawing.annotation("Optimizer.step#SGD.step", at, 50)
                drawing.annotation(
                    "Optimizer.step#SGD.step", at - 60, 50, cat="gpu_user_annotation", pid=0, tid=7
                )
                continue
            if gradient == "=":
                drawing.op("autograd::engine::evaluate_function: EmbeddingBackward0", at, 30)
                continue
            number += 1
            drawing.op("autograd::engine::evaluate_function: AddmmBackward0", at, 30)
            drawing.launch("cudaLaunchKernel", at + 3, 2, corr=number)
            drawing.kernel("gemm", at + 10, 10, corr=number)
            drawing.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 40, 40)
            drawing.op("torch::autograd::AccumulateGrad", at + 45, 30)
            drawing.op("aten::add_" if gradient == "+" else "aten::detach", at + 50, 20)
            if gradient == "+":
                number += 1
                drawing.launch("cudaLaunchKernel", at + 53, 2, corr=number)
                drawing.kernel("add", at + 60, 10, corr=number)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("summed_gradients"))


def test_a_frozen_backbone_that_asks_for_gradients(tmp_path: Path) -> None:
    rows = drawn(tmp_path, "..++++", "..++++")
    # From the end of the second gradient, at 195 µs, to that of the last, at 595; 4 × 20 µs of work.
    assert rows == [SummedGradients(1, 2, 4, 8, True, False, False, 2 * 400_000, 2 * 80_000)]


def test_what_is_trained_may_lie_behind(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, ".++.")
    # From the first that is added, at 165 µs, to the end of the last one, at 295.
    assert (row.fresh, row.added, row.fresh_first, row.host_ns) == (2, 2, False, 130_000)
    assert row.device_ns == 30_000, "the work of the first one came before"


@pytest.mark.parametrize(
    "step, added_first, of_a_copy",
    [
        ("++=+..=.", True, True),  # a reference model, whose look-up comes last, before the model itself
        ("++=+....=.", True, False),  # other layers behind those that are trained
        ("+++...=", True, False),  # nothing tells that a graph ends before the fresh ones
        ("+=+.+..=.", False, False),
    ],
)
def test_a_copy_of_the_model_has_as_many(
    tmp_path: Path, step: str, added_first: bool, of_a_copy: bool
) -> None:
    (row,) = drawn(tmp_path, step, step)
    assert (row.added_first, row.of_a_copy) == (added_first, of_a_copy)


def test_fresh_gradients_are_no_row(tmp_path: Path) -> None:
    assert drawn(tmp_path, "....", "....") == []


def test_where_all_are_added_none_is_fresh(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, "+++")
    assert (row.fresh, row.added, row.fresh_first) == (0, 3, False)


def test_passes_between_updates_are_told_apart(tmp_path: Path) -> None:
    rows = drawn(tmp_path, ".++|..|", ".++|..|")
    assert [(row.backward_pass, row.steps, row.fresh, row.added) for row in rows] == [
        (1, 2, 2, 4),
        (2, 2, 4, 0),
    ]
    assert (rows[1].host_ns, rows[1].device_ns) == (0, 0)
