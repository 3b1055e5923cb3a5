from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.written_pairs import WrittenPairs

ITEM, OURS, THEIRS, ALL = [4, 32, 64], [4, 32, 1, 64], [4, 1, 32, 64], [4, 32, 32, 64]
PAIRS = [4, 32, 32, 128]
WEIGHT = [8, 128]


class Pairs(Drawing):
    """A step that joins something for a layer; times in µs. Without shapes no operator has any."""

    def __init__(self, *, shapes: bool = True) -> None:
        super().__init__()
        self.shapes, self.at, self.number = shapes, 0, 0
        self.numbers: dict[str, int] = {}

    def run(self, name: str, *dims: Any, work: int = 0, called: str = "") -> Pairs:
        """An operator with shapes that works so long; `called` is for its gradient."""
        self.number += 1
        self.numbers[called or name] = self.number
        args = {"Sequence number": self.number} | ({"Input Dims": dims} if self.shapes else {})
        self.op(f"aten::{name}", self.at, 8, args=args)
        return self._works(work, thread=1)

    def gradient(self, node: str, of: str, work: int) -> Pairs:
        args = {"Sequence number": self.numbers[of], "Fwd thread id": 1}
        self.op(f"autograd::engine::evaluate_function: {node}", self.at, 8, args=args, thread=2)
        return self._works(work, thread=2)

    def _works(self, work: int, thread: int) -> Pairs:
        if work:
            self.launch("cudaLaunchKernel", self.at + 3, 2, corr=self.at + 1, thread=thread)
            self.kernel("k", 100 * self.at + 1000, work, corr=self.at + 1)
        self.at += 10
        return self

    def rows(self, folder: Path) -> list[WrittenPairs]:
        self.mark(1, 0, self.at)
        return list(stepscope.open(self.write(folder / "drawn.json")).table("written_pairs"))


def repeated(*, shapes: bool = True) -> Pairs:
    """Both members, each written in 100 µs; the join takes 200."""
    drawing = Pairs(shapes=shapes).run("linear", ITEM, [64, 64], [64], work=3)
    drawing.run("unsqueeze", ITEM, []).run("repeat", OURS, [], work=100, called="ours")
    return drawing.run("unsqueeze", ITEM, []).run("repeat", THEIRS, [], work=100, called="theirs")


def scored(*, shapes: bool = True) -> Pairs:
    """Pairs through a layer that takes 80 µs; what follows takes 10."""
    drawing = repeated(shapes=shapes).run("cat", [ALL, ALL], [], work=200)
    drawing.run("linear", PAIRS, WEIGHT, [8], work=80, called="layer").run("squeeze", [4, 32, 32, 8], [])
    return drawing.run("leaky_relu", [4, 32, 32, 8], [], work=10)


def trained(drawing: Pairs) -> Pairs:
    drawing.gradient("AddmmBackward0", "layer", 160).gradient("CatBackward0", "cat", 0)
    return drawing.gradient("RepeatBackward0", "theirs", 50).gradient("RepeatBackward0", "ours", 50)


def test_the_whole_row_with_shapes(tmp_path: Path) -> None:
    (row,) = trained(scored()).rows(tmp_path)
    assert row.host_share == pytest.approx(6 / 13)
    # What stays: a 32nd of the layer, 80 + 160 µs; and, as 8 of 128 numbers, a 16th of the join, three times.
    assert row == WrittenPairs(
        step=1,
        user_frame=None,
        told_by="shapes",
        shape="4 × 32 × 32 × 128",
        out_width=8,
        times=32.0,
        repeated_share=1.0,
        gathered=False,
        calls=1,
        spread_ns=200_000,
        joined_ns=200_000,
        product_ns=80_000,
        copies_backward_ns=100_000,
        product_backward_ns=160_000,
        stays_least_ns=0,
        stays_most_ns=7_500 + 37_500,
        host_share=row.host_share,
    )


def test_the_same_without_shapes(tmp_path: Path) -> None:
    (row,) = trained(scored(shapes=False)).rows(tmp_path)
    assert (row.told_by, row.shape, row.out_width, row.times) == ("times", None, None, None)
    assert (row.spread_ns, row.joined_ns, row.product_ns) == (200_000, 200_000, 80_000)
    assert (row.copies_backward_ns, row.product_backward_ns) == (100_000, 160_000)
    assert row.stays_most_ns == 120_000 + 45_000  # half of the layer, 1.5 × 3 times what follows


def test_inference_writes_the_sums_once(tmp_path: Path) -> None:
    (sized,) = scored().rows(tmp_path)
    assert sized.stays_most_ns == 2_500 + 12_500
    (unsized,) = scored(shapes=False).rows(tmp_path)
    assert unsized.stays_most_ns == 40_000 + 15_000


def test_layers_of_one_shape_are_one_row(tmp_path: Path) -> None:
    drawing = scored()
    drawing.run("unsqueeze", ITEM, []).run("repeat", OURS, [], work=100)
    drawing.run("unsqueeze", ITEM, []).run("repeat", THEIRS, [], work=100).run(
        "cat", [ALL, ALL], [], work=200
    )
    (row,) = drawing.run("linear", PAIRS, WEIGHT, [8], work=80).rows(tmp_path)
    assert (row.calls, row.spread_ns, row.product_ns) == (2, 400_000, 160_000)


def test_views_and_copies_between(tmp_path: Path) -> None:
    """As graph attention is often written: flat pairs that a view unfolds, and a vector as the layer."""
    drawing = Pairs().run("repeat_interleave", [32, 64], [], [], [], work=90)
    drawing.run("repeat", [32, 64], [], work=100).run("cat", [[1024, 64], [1024, 64]], [], work=200)
    drawing.run("view", [1024, 128], []).run("contiguous", [32, 32, 128], [], work=30)
    (row,) = drawing.run("matmul", [32, 32, 128], [128], work=70).rows(tmp_path)
    assert (row.shape, row.out_width, row.times) == ("1024 × 128", 1, 32.0)
    assert (row.spread_ns, row.joined_ns, row.product_ns) == (190_000, 230_000, 70_000)


def expanded(*, shapes: bool) -> Pairs:
    drawing = Pairs(shapes=shapes).run("unsqueeze", ITEM, []).run("expand", OURS, [], [], called="ours")
    drawing.run("unsqueeze", ITEM, []).run("expand", THEIRS, [], [], called="theirs")
    drawing.run("cat", [ALL, ALL], [], work=100)
    return drawing.run("linear", PAIRS, WEIGHT, [8], work=80, called="layer")


def test_views_that_the_join_writes_out(tmp_path: Path) -> None:
    (row,) = expanded(shapes=True).rows(tmp_path)
    assert (row.told_by, row.spread_ns, row.joined_ns) == ("shapes", 0, 100_000)
    (row,) = expanded(shapes=False).rows(tmp_path)
    assert (row.told_by, row.spread_ns, row.joined_ns) == ("order", 0, 100_000)


def test_gradients_tell_how_large_views_are(tmp_path: Path) -> None:
    large = expanded(shapes=False).gradient("AddmmBackward0", "layer", 160)
    large.gradient("ExpandBackward0", "theirs", 50).gradient("ExpandBackward0", "ours", 50)
    (row,) = large.rows(tmp_path)
    assert (row.told_by, row.copies_backward_ns) == ("times", 100_000)
    small = expanded(shapes=False).gradient("AddmmBackward0", "layer", 160)  # as of tokens before a text
    small.gradient("ExpandBackward0", "theirs", 2).gradient("ExpandBackward0", "ours", 2)
    assert small.rows(tmp_path) == []


def test_a_view_and_the_same_turned_around(tmp_path: Path) -> None:
    drawing = (
        Pairs().run("expand", OURS, [], []).run("transpose", ALL, [], []).run("cat", [ALL, ALL], [], work=100)
    )
    (row,) = drawing.run("linear", PAIRS, WEIGHT, [8], work=80).rows(tmp_path)
    assert (row.times, row.repeated_share) == (32.0, 1.0)


def test_features_of_the_pair_stay_in_the_layer(tmp_path: Path) -> None:
    drawing = repeated().run("cat", [ALL, ALL, [4, 32, 32, 32]], [], work=200)
    (row,) = drawing.run("linear", [4, 32, 32, 160], [20, 160], [20], work=80).rows(tmp_path)
    assert row.repeated_share == pytest.approx(0.8)
    assert row.stays_least_ns == 16_000
    assert row.stays_most_ns == 16_000 + 2_000 + 25_000


def test_both_ends_of_every_edge(tmp_path: Path) -> None:
    edges = [640, 64]
    drawing = Pairs().run("index", [64, 64], [], work=100).run("index", [64, 64], [], work=100)
    drawing.run("cat", [edges, edges], [], work=200)
    (row,) = drawing.run("linear", [640, 128], [16, 128], [16], work=80).rows(tmp_path)
    assert (row.gathered, row.times) == (True, 10.0)
    assert row.stays_least_ns == 50_000  # a quarter of the width is gathered
    assert row.stays_most_ns == 8_000 + 25_000 + 100_000


def layer(drawing: Pairs, rows: list[int] = PAIRS) -> Pairs:
    return drawing.run("linear", rows, [8, rows[-1]], [8], work=80)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize(
    "between", ["relu", "layer_norm", "dropout"], ids=["not linear", "normalised", "dropped"]
)
def test_what_is_computed_of_all_pairs_first(between: str, shapes: bool, tmp_path: Path) -> None:
    drawing = repeated(shapes=shapes).run("cat", [ALL, ALL], [], work=200).run(between, PAIRS, work=90)
    assert layer(drawing).rows(tmp_path) == []


@pytest.mark.parametrize("shapes", [True, False])
def test_skip_connections(shapes: bool, tmp_path: Path) -> None:
    drawing = Pairs(shapes=shapes).run("relu", ALL, work=100).run("mul", ALL, ALL, work=100)
    assert layer(drawing.run("cat", [ALL, ALL], [], work=200)).rows(tmp_path) == []


@pytest.mark.parametrize("shapes", [True, False])
def test_only_one_part_is_repeated(shapes: bool, tmp_path: Path) -> None:
    drawing = Pairs(shapes=shapes).run("repeat", OURS, [], work=100).run("relu", ALL, work=100)
    assert layer(drawing.run("cat", [ALL, ALL], [], work=200)).rows(tmp_path) == []


def test_rows_of_large_tables(tmp_path: Path) -> None:
    """Fewer rows are taken than there are; and without shapes an index tells nothing."""
    for shapes in (True, False):
        drawing = Pairs(shapes=shapes).run("index", [9999, 64], [], work=100)
        drawing.run("index_select", [5000, 64], [], [512], work=100)
        drawing.run("cat", [[512, 64], [512, 64]], [], work=200)
        assert layer(drawing, [512, 128]).rows(tmp_path) == []


def test_tokens_before_a_text_and_heads(tmp_path: Path) -> None:
    """Joined one after the other, not side by side; and a product of two results."""
    drawing = Pairs().run("expand", [1, 1, 64], [], []).run("expand", [1, 1, 64], [], [])
    drawing.run("cat", [[4, 1, 64], [4, 1, 64], ITEM], [], work=200)
    assert layer(drawing, [4, 34, 64]).rows(tmp_path) == []
    drawing = repeated().run("cat", [ALL, ALL], [], work=200)
    assert drawing.run("matmul", PAIRS, [4, 32, 128, 32], work=80).rows(tmp_path) == []


def test_small_repeats_before_a_large_join(tmp_path: Path) -> None:
    drawing = Pairs(shapes=False).run("repeat", work=5).run("repeat", work=5).run("cat", work=200)
    assert layer(drawing).rows(tmp_path) == []


def test_joins_that_are_little_of_the_step(tmp_path: Path) -> None:
    assert scored().run("mul", ALL, ALL, work=90_000).rows(tmp_path) == []


@pytest.mark.parametrize(
    "odd", [[], [[]], [[ALL]], [["x", ALL]], [ALL], [[ALL, [[2]]]], [[ALL, [4, 32, 0]]]], ids=str
)
def test_odd_shapes(odd: list[Any], tmp_path: Path) -> None:
    assert layer(repeated().run("cat", *odd, work=200)).rows(tmp_path) == []
