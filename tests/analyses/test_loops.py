"""Operators that a step calls again and again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analyses.test_code import analysed, opened
from tests.drawing import Drawing


def looping(
    names: tuple[str, ...] = ("aten::mm", "aten::tanh"),
    times: int = 8,
    *,
    frames: str = "",
    wide: bool = False,
) -> Drawing:
    """A step that calls an embedding, then some operators again and again, 10 µs and one launch each."""
    drawing = Drawing().mark(3, 0, 2_000).op("aten::embedding", 10, 10)
    drawing.launch("cudaLaunchKernel", 12, 2, corr=1).kernel("first", 20, 5, corr=1)
    at, corr = 100, 2
    for turn in range(times):
        if frames:
            drawing.frame(frames.format(turn), at, 10 * len(names))
        for name in names:
            dims = {"Input Dims": [[turn if wide else 8, 4]]}
            drawing.op(name, at, 10, args=dims).op("aten::inner", at + 1, 8)
            drawing.launch("cudaLaunchKernel", at + 2, 2, corr=corr).kernel("k", at + 8, 1, corr=corr)
            at, corr = at + 10, corr + 1
    return drawing.op("aten::sum", 1_500, 10)


def test_a_loop_by_hand(tmp_path: Path) -> None:
    (row,) = analysed("loops", opened(looping(), tmp_path))
    assert (row.step, row.repeats, row.ops) == (3, 8, 2)
    assert row.first_ops == "aten::mm, aten::tanh"
    assert row.contains == "aten::inner, aten::mm, aten::tanh"
    assert (row.same_place, row.same_shapes, row.user_frame, row.module) == (None, True, None, None)
    assert row.host_ns == 160_000
    # The first launch comes 2 µs after the loop begins, the others 3 µs after the work before them has ended.
    assert row.idle_ns == 2_000 + 15 * 3_000
    assert (row.launches, row.launch_share) == (16, 16 / 17)


@pytest.mark.parametrize(
    "frame, same",
    [("net.py(8): cell", True), ("nn.Module: Cell_0", True), ("nn.Module: Block_{}", False)],
)
def test_layers_are_told_from_loops_by_their_modules(frame: str, same: bool, tmp_path: Path) -> None:
    (row,) = analysed("loops", opened(looping(frames=frame), tmp_path))
    assert row.same_place is same
    assert row.user_frame == ("net.py(8): cell" if "py" in frame else None)
    assert (row.module is None) is ("py" in frame)


def test_shapes_that_differ(tmp_path: Path) -> None:
    (row,) = analysed("loops", opened(looping(wide=True), tmp_path))
    assert row.same_shapes is False


@pytest.mark.parametrize("drawing", [looping(times=3), looping(times=7), Drawing().kernel("k", 0, 5)])
def test_nothing_repeats(drawing: Drawing, tmp_path: Path) -> None:
    table = analysed("loops", opened(drawing, tmp_path))
    assert list(table) == []
    assert table.notes


def test_backward_and_the_optimizer_do_not_count(tmp_path: Path) -> None:
    drawing = looping(("aten::mul_", "aten::add_")).annotation("Optimizer.step#SGD.step", 90, 1_000)
    assert list(analysed("loops", opened(drawing, tmp_path))) == []


BLOCK = ("aten::layer_norm", "aten::linear", "aten::gelu")
NETWORK = ("aten::slice", "aten::conv2d", *BLOCK * 5, "aten::linear")


@pytest.mark.parametrize(
    "names,layers",
    [
        (NETWORK, 5),
        (BLOCK, 0),
        (("aten::layer_norm", *("aten::index", "aten::linear", "aten::silu") * 5), 0),  # experts
        ((*BLOCK * 4, *(f"aten::f{number}" for number in range(13))), 0),  # less than half of it
    ],
)
def test_a_network_that_is_called_again_has_layers(
    names: tuple[str, ...], layers: int, tmp_path: Path
) -> None:
    rows = analysed("loops", opened(looping(names, times=6), tmp_path))
    row = next(row for row in rows if row.ops == len(names))
    assert (row.repeats, row.layers) == (6, layers)


def test_the_first_module_of_a_repetition_counts(tmp_path: Path) -> None:
    drawing = looping(("aten::slice", "aten::mm", "aten::tanh"))
    for turn in range(8):
        drawing.frame("nn.Module: Net_0", 100 + 30 * turn + 10, 20)
    (row,) = analysed("loops", opened(drawing, tmp_path))
    assert (row.module, row.same_place) == ("nn.Module: Net_0", True)


@pytest.mark.parametrize(
    "names, lookup",
    [
        (("aten::mm", "aten::tanh"), None),
        (("aten::embedding", "aten::linear", "aten::argmax"), "chosen"),
        (("aten::linear", "aten::argmax", "aten::cat", "aten::embedding"), "chosen"),
        # An encoder chooses the place of the last word, and another network follows.
        (("aten::embedding", "aten::embedding", "aten::linear", "aten::argmax", "aten::linear"), "given"),
        (("aten::embedding", "aten::linear", "aten::tanh"), "given"),
    ],
)
def test_what_a_repetition_looks_up(names: tuple[str, ...], lookup: str | None, tmp_path: Path) -> None:
    rows = analysed("loops", opened(looping(names), tmp_path))
    assert next(row for row in rows if row.ops == len(names)).lookup == lookup
