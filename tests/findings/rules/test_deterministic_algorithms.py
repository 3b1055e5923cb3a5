from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn
from tests.findings.test_library import LIBRARY
from tests.samples import reported

from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.deterministic_algorithms import deterministic_algorithms

FILL = {"name": "aten::fill_", "within": "aten::empty_strided", "per_step": 9.0, "device_ns": 10 * MS}
SUM = {"name": "aten::index_put_", "per_step": 1.0, "device_ns": 20 * MS}
INSIDE = SUM | {"name": "aten::_index_put_impl_", "within": "aten::index_put_"}


def test_fills_go_and_ordered_sums_may() -> None:
    advice = assert_bounded(
        deterministic_algorithms(busy_pace(), drawn(StepOp, FILL, SUM, INSIDE)), busy_pace()
    )
    assert advice.evidence["filling_ns"] == MS
    assert advice.evidence["ordered_ns"] == 2 * MS
    assert "use_deterministic_algorithms(False)" in advice.fix
    gain = busy_pace().gain(advice.saving)
    assert gain.low_share == pytest.approx(0.1, rel=0.1)
    assert gain.high_share == pytest.approx(0.26, rel=0.1)


def test_fills_that_the_program_asks_for_are_none() -> None:
    assert deterministic_algorithms(busy_pace(), drawn(StepOp, FILL | {"within": "aten::full"}, SUM)) is None
    assert deterministic_algorithms(busy_pace(), drawn(StepOp, FILL | {"within": None}, SUM)) is None
    on_the_host = FILL | {"device_ns": 0}
    assert deterministic_algorithms(busy_pace(), drawn(StepOp, on_the_host, SUM)) is None


@pytest.mark.slow
def test_a_model_of_baskets() -> None:
    """A real program whose step is half as long without the setting."""
    report = reported(LIBRARY / "settings_basket_model.faulty.light.pt.trace.json.gz")
    assert "deterministic-algorithms" in [finding.id for finding in report.findings[:2]]
