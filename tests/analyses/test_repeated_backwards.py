from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.repeated_backwards import RepeatedBackwards

NODE = "autograd::engine::evaluate_function: "


def drawn(folder: Path, *steps: str) -> list[RepeatedBackwards]:
    """The table of a profile of these steps: a letter for each node of a graph, in its order.

    Each takes 40 µs and launches 10 µs of work. At + a weight gets its gradient, at | an optimizer updates
    weights, and from . on a new forward pass has made the nodes.
    """
    drawing = Drawing()
    passes = number = 0
    for step, events in enumerate(steps):
        since = 2000 * step
        drawing.mark(step, since, 1990)
        passes += 1
        for place, event in enumerate(events):
            at = since + 20 + 100 * place
            if event == ".":
                passes += 1
            elif event == "|":
                drawing.annotation("Optimizer.step#SGD.step", at, 50)
            elif event == "+":
                drawing.op(f"{NODE}torch::autograd::AccumulateGrad", at, 40)
                drawing.op("torch::autograd::AccumulateGrad", at + 5, 20)
            else:
                number += 1
                told: dict[str, Any] = {"Sequence number": 100 * passes + ord(event), "Fwd thread id": 1}
                drawing.op(f"{NODE}AddmmBackward0", at, 40, **told)
                drawing.launch("cudaLaunchKernel", at + 3, 2, corr=number)
                drawing.kernel("gemm", at + 10, 10, corr=number)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("repeated_backwards"))


def test_two_losses_go_through_the_layers_that_they_share(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, "hab+iab+", "hab+iab+")
    assert (row.steps, row.passes, row.operators, row.runs) == (2, 2, 8, 12)
    # A third of the runs: 40 µs each, and of the four sums of gradients, 20 µs each.
    assert row.host_ns == 4 * 40_000 + round(4 * 20_000 / 3)
    assert row.device_ns == 4 * 10_000


def test_micro_batches_have_forward_passes_of_their_own(tmp_path: Path) -> None:
    assert drawn(tmp_path, "ab+.ab+", "ab+.ab+") == []


def test_an_update_of_weights_in_between_makes_two_trainings(tmp_path: Path) -> None:
    assert drawn(tmp_path, "hab+|iab+|", "hab+|iab+|") == []


def test_derivatives_by_inputs_give_no_weight_a_gradient(tmp_path: Path) -> None:
    assert drawn(tmp_path, "abab+", "abab+") == []
