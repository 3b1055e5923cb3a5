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


@pytest.mark.parametrize("others,repeats,place", [(1, 7, "cell"), (3, 5, "cell"), (5, 5, "other")])
def test_what_is_called_from_elsewhere_is_no_turn(
    others: int, repeats: int, place: str, tmp_path: Path
) -> None:
    drawing = looping()
    drawing.frame("net.py(4): other", 100, 20 * others)
    drawing.frame("net.py(8): cell", 100 + 20 * others, 20 * (8 - others))
    (row,) = analysed("loops", opened(drawing, tmp_path))
    assert (row.repeats, row.same_place) == (repeats, True)
    assert (row.user_frame or "").endswith(place)


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


def critics(updates: int, turns: int = 5) -> Drawing:
    """A step with some updates of an optimizer; before each, small networks are called in turn."""
    drawing = Drawing().mark(0, 0, 4_000 * updates)
    layers = (
        ("aten::linear", [[4, 6], [8, 6]]),
        ("aten::relu", [[4, 8]]),
        ("aten::linear", [[4, 8], [1, 8]]),
    )
    for update in range(updates):
        at = 4_000 * update + 10
        for _ in range(turns):
            for name, dims in (*layers, ("aten::squeeze", [[4, 1]])):
                drawing.op(name, at, 8, args={"Input Dims": dims})
                at += 10
        drawing.op("aten::stack", at, 8)
        drawing.op("autograd::engine::evaluate_function: MeanBackward0", at + 100, 50, tid=2)
        drawing.annotation("Optimizer.step#AdamW.step", at + 400, 100).op("aten::_fused_adamw_", at + 410, 50)
    return drawing


def test_no_loop_goes_on_after_an_update_of_the_weights(tmp_path: Path) -> None:
    rows = analysed("loops", opened(critics(5), tmp_path))
    assert [(row.repeats, row.ops, row.narrows, row.stacked, row.has_backward) for row in rows] == [
        (5, 4, True, True, True)
    ] * 5


def test_with_one_update_the_loop_is_the_same(tmp_path: Path) -> None:
    (row,) = analysed("loops", opened(critics(1), tmp_path))
    assert (row.repeats, row.ops, row.narrows, row.stacked) == (5, 4, True, True)


@pytest.mark.parametrize(
    "last, narrows",
    [
        (("aten::linear", [[8, 4], [4, 4]]), False),
        (("aten::linear", [[8, 4], [2, 4]]), True),
        (("aten::sum", [[8, 4]]), False),
        (("aten::add", [[8, 4], [8, 4]]), None),
        (("aten::mean", [[2, 4]]), True),
        (("aten::mean", []), None),
    ],
)
def test_whether_a_repetition_narrows(
    last: tuple[str, list[list[int]]], narrows: bool | None, tmp_path: Path
) -> None:
    drawing = Drawing().mark(0, 0, 2_000)
    for turn in range(8):
        drawing.op("aten::linear", 100 + 20 * turn, 8, args={"Input Dims": [[8, 4], [4, 4]]})
        drawing.op("aten::relu", 110 + 20 * turn, 3, args={"Input Dims": [[8, 4]]})
        drawing.op(last[0], 114 + 20 * turn, 4, args={"Input Dims": last[1]})
    rows = analysed("loops", opened(drawing, tmp_path))
    assert [row.narrows for row in rows] == [narrows]


@pytest.mark.parametrize(
    "last, narrows",
    [
        (("aten::add", [[], []]), True),
        (("aten::add", [[4], []]), None),
        (("aten::mean", [[]]), True),
        (("aten::mean", [[4]]), None),
    ],
)
def test_parts_of_a_tensor_that_give_single_numbers(
    last: tuple[str, list[list[int]]], narrows: bool | None, tmp_path: Path
) -> None:
    drawing = Drawing().mark(0, 0, 2_000)
    for turn in range(8):
        drawing.op("aten::select", 100 + 20 * turn, 8, args={"Input Dims": [[8, 4], [], []]})
        drawing.op("aten::sum", 110 + 20 * turn, 3, args={"Input Dims": [[4], []]})
        drawing.op(last[0], 114 + 20 * turn, 4, args={"Input Dims": last[1]})
    rows = analysed("loops", opened(drawing, tmp_path))
    assert [row.narrows for row in rows] == [narrows]


@pytest.mark.parametrize("dims", [5, "4, 4", {"a": 1}, [[4, "x"]], None])
def test_sizes_that_are_none_tell_nothing(dims: object, tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 2_000)
    for turn in range(8):
        drawing.op("aten::linear", 100 + 20 * turn, 8, args={"Input Dims": dims})
        drawing.op("aten::relu", 110 + 20 * turn, 8, args={"Input Dims": dims})
    (row,) = analysed("loops", opened(drawing, tmp_path))
    assert row.narrows is None


def test_loops_inside_each_repetition_are_rows_as_well(tmp_path: Path) -> None:
    heads = ("aten::linear", *("aten::slice", "aten::mm") * 8, "aten::add")
    rows = analysed("loops", opened(looping(heads, times=5), tmp_path))
    assert sorted((row.repeats, row.ops) for row in rows) == [(5, 18), *[(8, 2)] * 5]
    assert all(row.launches == 16 for row in rows if row.ops == 2)


def test_what_is_repeated_inside_without_a_product_is_no_layer(tmp_path: Path) -> None:
    slices = ("aten::linear", *("aten::slice", "aten::attention") * 8)
    rows = analysed("loops", opened(looping(slices, times=5), tmp_path))
    assert [row.layers for row in rows] == [0] * 6


def branching(*steady: str, turns: int = 40, ends: str = "aten::stack") -> Drawing:
    """A loop in which every third turn calls one operator more, and every fourth two others."""
    drawing, at = Drawing(), 10
    for turn in range(turns):
        more = ["aten::flip"] * (turn % 3 == 0) + ["aten::mean", "aten::sub"] * (turn % 4 == 0)
        for name in (*steady, *more):
            drawing.op(name, at, 8, args={"Input Dims": [[8, 4]]})
            drawing.launch("cudaLaunchKernel", at + 2, 2, corr=at).kernel("k", at + 8, 1, corr=at)
            at += 10
    return drawing.op(ends, at, 10).mark(3, 0, at + 20)


PICTURE = ("aten::affine_grid_generator", "aten::grid_sampler", "aten::mul", "aten::add", "aten::clamp")


def test_branches_do_not_hide_a_loop(tmp_path: Path) -> None:
    rows = analysed("loops", opened(branching(*PICTURE), tmp_path))
    row = max(rows, key=lambda row: row.repeats)
    assert (row.repeats, row.ops, row.first_ops) == (40, 5, ", ".join(PICTURE))
    assert (row.same_shapes, row.stacked) == (True, True)
    assert row.launches == 200 + 14 + 20 - 1  # with those of the branches, but for what comes after the last
    assert row.op_share == pytest.approx(200 / (200 + 14 + 20 + 1))


def test_no_loop_with_branches_goes_on_after_an_update(tmp_path: Path) -> None:
    drawing = branching(*PICTURE).annotation("Optimizer.step#AdamW.step", 1_018.2, 1.6)
    rows = analysed("loops", opened(drawing.op("aten::_fused_adamw_", 1_018.4, 1), tmp_path))
    assert all(row.repeats < 20 for row in rows)


def test_a_loop_whose_turns_mostly_differ_is_none(tmp_path: Path) -> None:
    drawing, at = Drawing(), 10
    for turn in range(40):
        for name in ("aten::select", *(f"aten::f{number}" for number in range(turn, turn + 5))):
            drawing.op(name, at, 8)
            at += 10
    assert list(analysed("loops", opened(drawing.mark(3, 0, at), tmp_path))) == []
