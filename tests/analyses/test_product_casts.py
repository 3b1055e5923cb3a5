from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.product_casts import ProductCasts


def drawn(folder: Path, *products: tuple[str, list[int]]) -> list[ProductCasts]:
    """The table of a profile with these products, each with casts of so many µs on the device."""
    drawing = Drawing().mark(1, 0, 100 * len(products) + 50)
    number = 0
    for place, (product, casts) in enumerate(products):
        start = 10 + 100 * place
        drawing.op(product, start, 90)
        for cast, dur in enumerate(casts):
            number += 1
            at = start + 1 + 20 * cast
            drawing.op("aten::to", at, 18).op("aten::_to_copy", at + 1, 16)
            if dur:
                drawing.launch("cudaLaunchKernel", at + 3, 2, corr=number)
                drawing.kernel("copy_kernel", at + 6, dur, corr=number)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("product_casts"))


def test_the_input_is_cast_first_and_then_the_weight(tmp_path: Path) -> None:
    rows = drawn(
        tmp_path,
        ("aten::linear", [2, 5]),  # input, weight
        ("aten::linear", [3]),  # the weight: another product wrote its input in the right type
        ("aten::linear", [2, 5, 1]),  # and a bias
        ("aten::linear", [0]),  # nothing is cast on the device
    )
    assert rows == [ProductCasts("aten::linear", 3, 6, 18_000, 4, 14_000)]


def test_one_cast_for_each_product_may_be_of_its_input(tmp_path: Path) -> None:
    rows = drawn(tmp_path, ("aten::linear", [2]), ("aten::linear", [2]), ("aten::conv2d", [4]))
    assert [(row.product, row.casts, row.of_weights, row.of_weights_ns) for row in rows] == [
        ("aten::conv2d", 1, 0, 0),
        ("aten::linear", 2, 0, 0),
    ]


def test_other_casts_do_not_count(tmp_path: Path) -> None:
    assert drawn(tmp_path, ("aten::layer_norm", [2, 2]), ("aten::softmax", [2])) == []
