from __future__ import annotations

from pathlib import Path

import pytest
from tests.analyses.test_beside_training import Steps

import stepscope
from stepscope.analyses.before_training import BeforeTraining

SPREAD = ("aten::index_select", "aten::mul", "aten::scatter_add_")


def steps_of(folder: Path, *names: str, graded: bool = True) -> list[BeforeTraining]:
    """Three training steps that begin with three times these operators."""
    drawing = Steps()
    for number in range(3):
        since = drawing.at
        drawing.beside(*names, times=3, graded=graded).forward().backward().update()
        drawing.mark(number, since, drawing.at - since)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("before_training"))


@pytest.mark.parametrize("graded", [True, False])
def test_what_comes_before_the_first_node(tmp_path: Path, graded: bool) -> None:
    (row,) = steps_of(tmp_path, *SPREAD, graded=graded)
    assert (row.steps, row.ops, row.device_ns) == (3, 27, 27 * 3_000)
    assert row.longest == "aten::index_select, aten::mul, aten::scatter_add_"
    assert row.host_ns == 3 * 88_000


@pytest.mark.parametrize("name", ["aten::linear", "aten::conv2d", "aten::randn_like", "aten::bernoulli"])
def test_a_network_and_what_is_drawn_are_no_rows(tmp_path: Path, name: str) -> None:
    assert steps_of(tmp_path, *SPREAD, name) == []


def test_a_network_counts_from_its_first_product_to_its_last(tmp_path: Path) -> None:
    (row,) = steps_of(
        tmp_path, "aten::randn_like", "aten::linear", "aten::relu", "aten::linear", "aten::conv2d"
    )
    assert (row.steps, row.products) == (3, 9)
    # The first numbers are drawn before it.
    assert (row.ops, row.device_ns) == (3 * 14, 3 * 14 * 3_000)
    assert row.longest.startswith("aten::linear")


@pytest.mark.parametrize("name", ["aten::argmax", "aten::item", "aten::multinomial"])
def test_a_network_that_acts_is_no_row(tmp_path: Path, name: str) -> None:
    assert steps_of(tmp_path, *("aten::linear",) * 4, name, "aten::linear") == []


def test_a_network_like_the_one_that_learns_is_no_row(tmp_path: Path) -> None:
    drawing = Steps()
    for number in range(3):
        since = drawing.at
        drawing.beside(*("aten::linear",) * 4, times=5).forward()  # which has four
        drawing.beside(*("aten::linear",) * 4, times=4).backward().update()
        drawing.mark(number, since, drawing.at - since)
    assert len(stepscope.open(drawing.write(tmp_path / "drawn.json")).table("before_training")) == 0


def test_updates_in_place_are_no_rows(tmp_path: Path) -> None:
    assert steps_of(tmp_path, "aten::mul_", "aten::add_", "aten::sub") == []


def test_nothing_comes_before(tmp_path: Path) -> None:
    assert steps_of(tmp_path) == []
