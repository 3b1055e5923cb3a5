from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.repeated_rows import RepeatedRows
from stepscope.findings import Advice
from stepscope.findings.rules.repeated_rows import repeated_rows

EDGES = {
    "step": 3,
    "user_frame": "graph.py(7): messages",
    "repeated_by": "aten::index",
    "shape": "1000000 × 128",
    "width": 128,
    "out_width": 128,
    "times": 20.0,
    "calls": 2,
    "layers": 2,
    "spread_ns": MS,
    "layers_ns": 4 * MS,
    "turned_ns": 0,
}


def found(**changed: Any) -> Advice | None:
    return repeated_rows(busy_pace(), drawn(RepeatedRows, EDGES | changed))


def test_the_layer_stays_once() -> None:
    advice = assert_bounded(found(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((3.8 * MS, 3.8 * MS))
    assert "`aten::index` repeats each row 20 times on average, to 1000000 × 128" in advice.because
    assert "4.00 ms of the GPU's time" in advice.because
    assert "layer(x)[source]" in advice.fix
    assert [place.line for place in advice.locations] == [7]


@pytest.mark.parametrize("out_width, saving", [(64, (3.8, 4.3)), (256, (2.8, 3.8))])
def test_results_are_copied_by_their_width(out_width: int, saving: tuple[float, float]) -> None:
    advice = assert_bounded(found(out_width=out_width), busy_pace())
    assert advice.saving.device_ns == pytest.approx([MS * end for end in saving])


@pytest.mark.parametrize(
    "repeated_by, line",
    [("aten::embedding", "F.embedding(ids, layer(table.weight))"), ("aten::expand", "layer(user)[:, None]")],
)
def test_the_fix_is_for_what_repeats(repeated_by: str, line: str) -> None:
    advice = found(repeated_by=repeated_by)
    assert advice
    assert line in advice.fix
    assert "messages" not in advice.fix


def test_a_short_layer_is_nothing() -> None:
    assert found(layers_ns=MS // 10) is None


def test_gradients_may_still_be_copied() -> None:
    advice = assert_bounded(found(turned_ns=MS), busy_pace())
    assert advice.saving.device_ns == pytest.approx((2.85 * MS, 3.8 * MS))
