from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.analyses.test_written_pairs import Pairs

import stepscope
from stepscope.analyses.repeated_rows import RepeatedRows

NODES, EDGES, WEIGHT = [100, 64], [1000, 64], [32, 64]
RESULT, KEYS = [1000, 32], [8, 4, 64, 50]


def rows_of(folder: Path, drawing: Pairs) -> list[RepeatedRows]:
    drawing.mark(1, 0, drawing.at)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("repeated_rows"))


def gathered(**options: Any) -> Pairs:
    """The features of 100 nodes for 1,000 edges, which a layer takes."""
    drawing = Pairs(**options).run("index", NODES, [[1000]], work=20, called="index")
    return drawing.run("linear", EDGES, WEIGHT, [32], work=100, called="layer")


def test_the_whole_row(tmp_path: Path) -> None:
    drawing = gathered().run("relu", RESULT, work=10).run("linear", RESULT, [16, 32], [16], work=50)
    drawing.run("index_add_", NODES, [], [1000], [1000, 16], work=30)
    drawing.gradient("AddmmBackward0", "layer", 200).gradient("IndexBackward0", "index", 40)
    assert rows_of(tmp_path, drawing) == [
        RepeatedRows(
            step=1,
            user_frame=None,
            repeated_by="aten::index",
            shape="1000 × 64",
            width=64,
            out_width=16,
            times=10.0,
            calls=1,
            layers=2,
            spread_ns=60_000,
            layers_ns=360_000,
            turned_ns=0,
        )
    ]


@pytest.mark.parametrize(
    "name, dims",
    [
        ("embedding", [NODES, [50, 20], [], [], []]),
        ("index", [NODES, []]),
        ("index_select", [NODES, [], [1000]]),
        ("repeat_interleave", [NODES, [1000]]),
        ("repeat", [NODES, []]),
        ("expand", [[100, 1, 64], [], []]),
    ],
)
def test_whatever_repeats_the_rows(tmp_path: Path, name: str, dims: list[Any]) -> None:
    drawing = Pairs().run(name, *dims).run("reshape", EDGES, [], work=20)
    (row,) = rows_of(tmp_path, drawing.run("linear", EDGES, WEIGHT, [32], work=100))
    assert (row.times, row.spread_ns, row.layers_ns, row.out_width) == (10.0, 20_000, 100_000, 32)


def test_a_norm_comes_before_the_layer(tmp_path: Path) -> None:
    drawing = Pairs().run("embedding", NODES, [1000]).run("layer_norm", EDGES, [], [64], [64], work=20)
    drawing.run("addmm", [32], EDGES, [64, 32], work=100).run("dropout", RESULT, work=10)
    (row,) = rows_of(tmp_path, drawing.run("linear", RESULT, [8, 32], [8], work=50))
    assert (row.layers, row.layers_ns, row.out_width) == (1, 120_000, 32)


@pytest.mark.parametrize(
    "drawing, why",
    [
        (Pairs().run("index", NODES, [[1000]]).run("linear", EDGES, work=9), "no weight was recorded"),
        (gathered(shapes=False), "without shapes nothing tells how many rows there are"),
        (Pairs().run("index", [5000, 64], [[1000]]).run("linear", EDGES, WEIGHT, work=9), "fewer rows"),
        (Pairs().run("index", NODES, [[900]]).run("linear", EDGES, WEIGHT, work=9), "as many as no index"),
        (Pairs().run("index", NODES, [[1000]]).run("linear", [1000, 48], [32, 48], work=9), "another width"),
        (
            Pairs().run("expand", [8, 1, 50, 64], [], []).run("matmul", [8, 4, 50, 64], KEYS, work=9),
            "attention to repeated keys multiplies no weight",
        ),
        (
            Pairs().run("index", NODES, [[1000]]).run("mul", EDGES, EDGES).run("linear", EDGES, WEIGHT),
            "something else is multiplied with them first",
        ),
    ],
)  # fmt: skip
def test_no_row(tmp_path: Path, drawing: Pairs, why: str) -> None:
    assert rows_of(tmp_path, drawing) == [], why


def test_calls_of_one_shape_are_one_row(tmp_path: Path) -> None:
    drawing = gathered().run("add", RESULT, RESULT).run("index", NODES, [[1000]], work=20)
    (row,) = rows_of(tmp_path, drawing.run("linear", EDGES, WEIGHT, [32], work=100))
    assert (row.calls, row.layers, row.layers_ns) == (2, 2, 200_000)
