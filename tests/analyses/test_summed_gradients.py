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
    # Before it there are two gradients, 10 µs of work each, from 20 µs on.
    assert rows == [
        SummedGradients(
            backward_pass=1,
            steps=2,
            fresh=4,
            added=8,
            fresh_first=True,
            added_first=False,
            of_a_copy=False,
            uses=1,
            ended=1,
            host_ns=2 * 400_000,
            device_ns=2 * 80_000,
            ended_host_ns=2 * 400_000,
            ended_device_ns=2 * 80_000,
            before_host_ns=2 * 175_000,
            before_device_ns=2 * 20_000,
        )
    ]


def test_what_is_trained_may_lie_behind(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, ".++.")
    # From the first that is added, at 165 µs, to the end of the last one, at 295.
    assert (row.fresh, row.added, row.fresh_first, row.host_ns) == (2, 2, False, 130_000)
    assert row.device_ns == 30_000, "the work of the first one came before"
    assert (row.uses, row.ended, row.ended_device_ns) == (1, 0, 0)


def test_the_layer_of_the_first_one_counts_if_they_come_first(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, "=++.")
    # From the layer at 120 µs to the end of the second gradient, at 295; the gradient of a look-up is before.
    assert (row.added_first, row.host_ns, row.device_ns) == (True, 175_000, 40_000)
    assert (row.before_host_ns, row.before_device_ns) == (100_000, 0)


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


def used(folder: Path, *nodes: str) -> SummedGradients | None:
    """The row of two steps of these nodes of a backward pass, 60 µs each, 100 µs apart.

    The letter is the node: a Loss, a Convolution, an Addmm or To, the cast of a weight; the digit is how
    many kernels of 10 µs it launches. An `s` is a sum with what an earlier node gave, `.` or `+` an
    AccumulateGrad.
    """
    drawing = Drawing()
    names = {"L": "MseLoss", "C": "Convolution", "A": "Addmm", "T": "ToCopy"}
    number = 0
    for step in range(2):
        drawing.mark(step, 5000 * step, 4900)
        for place, node in enumerate(nodes):
            at = 5000 * step + 20 + 100 * place
            name = f"{names[node[0]]}Backward0"
            drawing.op(f"autograd::engine::evaluate_function: {name}", at, 60)
            drawing.op(name, at + 2, 40)
            for kernel in range(int(node[1])):
                number += 1
                drawing.launch("cudaLaunchKernel", at + 4 + 4 * kernel, 2, corr=number)
                drawing.kernel("gemm", at + 10 + 10 * kernel, 10, corr=number)
            for turn in range(node.count("s")):
                drawing.op("aten::add_", at + 44 + 4 * turn, 3)
            for turn in range(node.count(".") + node.count("+")):
                drawing.op("torch::autograd::AccumulateGrad", at + 62 + 10 * turn, 8)
                drawing.op("aten::add_" if "+" in node else "aten::detach", at + 63 + 10 * turn, 6)
    return next(iter(stepscope.open(drawing.write(folder / "drawn.json")).table("summed_gradients")), None)


TARGET, PREDICTION = ("C2", "C2", "C1"), ("C2s+", "C2s+", "C2s+")


def test_a_use_whose_input_needs_no_gradient_ends(tmp_path: Path) -> None:
    row = used(tmp_path, "L3", "L3", *TARGET, *PREDICTION, "A2.")
    assert row is not None
    assert (row.added_first, row.uses, row.ended) == (True, 2, 1)
    # In each of two steps the target has 5 kernels, from 220 µs to the end of its last layer, at 480; the
    # prediction has 6, from 520 µs to the end of the last gradient, at 790. The loss has 6, from 20 µs on.
    assert (row.ended_host_ns, row.ended_device_ns) == (2 * 260_000, 2 * 50_000)
    assert (row.host_ns, row.device_ns) == (2 * (260_000 + 270_000), 2 * 110_000)
    assert (row.before_host_ns, row.before_device_ns) == (2 * 200_000, 2 * 60_000)


def test_the_prediction_may_come_before_its_target(tmp_path: Path) -> None:
    row = used(tmp_path, "L3", "C2", "C2", "C2", "C2s+", "C2s+", "C1s+", "A2.")
    assert row is not None
    assert (row.uses, row.ended, row.device_ns, row.ended_device_ns) == (2, 1, 220_000, 100_000)
    # The features of the target were computed first of all, before the model was called.
    row = used(tmp_path, "L3", "C2", "C2", "C2", "A2.", "A2.", "C2s+", "C2s+", "C1s+")
    assert row is not None
    assert (row.fresh_first, row.uses, row.ended) == (True, 2, 1)
    assert (row.device_ns, row.ended_device_ns) == (220_000, 100_000)


@pytest.mark.parametrize(
    "nodes, uses, ended",
    [
        ((*TARGET, *TARGET, *PREDICTION), 2, 1),  # only the first use is without sums: others are frozen
        ((*TARGET, "C2s", "C2s", "C1s", *PREDICTION), 3, 2),
        (("C2", "C2", "C2", *PREDICTION), 2, 0),  # an input of each of them needs a gradient, or none does
        (("C1", "C2", "C1", *PREDICTION), 2, 0),  # other kernels: what differs says nothing of gradients
        (("C2", "A2", "C1", *PREDICTION), 1, 0),  # other layers
        (("C2", "C1", *PREDICTION), 1, 0),  # too few
        ((*TARGET, "C2+", "C2s+", "C2+"), 1, 0),  # frozen layers: nothing is summed but where paths join
        (("C2", "C2", "C1", "C2ss++", "C2ss++", "C2ss++"), 2, 1),  # weights and biases
        (("C2", "C2", "C1", "C2s++", "C2s++", "C2s++"), 1, 0),
        (("A2", "A1", "A2s", "T0+", "A2s", "T0+"), 2, 1),  # the cast of a weight is shared
    ],
)
def test_uses_are_told_by_their_layers_and_sums(
    tmp_path: Path, nodes: tuple[str, ...], uses: int, ended: int
) -> None:
    row = used(tmp_path, "L3", *nodes, "A2.")
    assert row is not None
    assert (row.uses, row.ended) == (uses, ended)


def test_a_backbone_behind_a_head_that_is_called_for_each_input(tmp_path: Path) -> None:
    row = used(tmp_path, "L1", "A2", "C2", "C1", "A2s.", "C2s+", "C1s+")
    assert row is not None
    # 3 kernels of the backbone in each use, 2 of the head, 1 of the loss.
    assert (row.fresh_first, row.uses, row.ended, row.ended_device_ns) == (True, 2, 2, 2 * 60_000)
    assert row.before_device_ns == 2 * 30_000
