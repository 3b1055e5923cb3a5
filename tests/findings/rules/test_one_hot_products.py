from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn
from tests.findings.test_library import LIBRARY
from tests.samples import reported

from stepscope.analyses.one_hot_products import OneHotProduct
from stepscope.findings import Advice
from stepscope.findings.rules.one_hot_products import one_hot_products

CODES = {
    "step": 3,
    "user_frame": "codes.py(7): forward",
    "rows": 65_536,
    "table_rows": 8192,
    "calls": 1,
    "product_ns": 2 * MS,
    "gradient_ns": MS,
    "filling_ns": MS // 2,
}


def found(**changed: Any) -> Advice | None:
    return one_hot_products(busy_pace(), drawn(OneHotProduct, CODES | changed))


def test_products_go_and_the_gradient_may() -> None:
    advice = assert_bounded(found(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((2.5 * MS, 3.5 * MS))
    assert "65,536 one-hot rows" in advice.because
    assert "functional.embedding" in advice.fix
    assert [place.line for place in advice.locations] == [7]


def test_it_is_silent_where_it_is_little() -> None:
    assert found(product_ns=MS // 100, gradient_ns=0, filling_ns=0) is None
    assert one_hot_products(busy_pace(), drawn(OneHotProduct)) is None


@pytest.mark.slow
def test_codes_looked_up_by_a_product() -> None:
    """A real program: without the product its step is 20 % shorter."""
    report = reported(LIBRARY / "eleventh_tile_codec.faulty.full.pt.trace.json.gz")
    (one,) = [finding for finding in report.findings[:3] if finding.id == "one-hot-products"]
    assert one.gain.low_share < 0.202 < one.gain.high_share
