from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn
from tests.findings.test_library import LIBRARY
from tests.samples import reported

from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.costly_draws import costly_draws
from stepscope.tables import Table


def draws(name: str = "aten::multinomial", **changed: Any) -> Table[StepOp]:
    """Ten steps with a draw each, of 4 ms, of which 3 ms are noise and selection."""
    whole = {"name": name, "per_step": 1.0, "device_ns": 40 * MS, "user_frame": "negatives.py(9): draw"}
    inside = [
        {"name": "aten::topk", "device_ns": 20 * MS},
        {"name": "aten::exponential_", "device_ns": 10 * MS},
        {"name": "aten::min", "device_ns": 5 * MS},
    ]
    return drawn(StepOp, whole | changed, *({"within": name} | one for one in inside))


def test_the_noise_goes_and_the_checks_may() -> None:
    advice = assert_bounded(costly_draws(busy_pace(), draws()), busy_pace())
    assert advice.saving.device_ns == pytest.approx((3 * MS, 4 * MS))
    assert "searchsorted" in advice.fix
    assert [place.line for place in advice.locations] == [9]


def test_it_is_silent_where_it_is_little_or_another_operator() -> None:
    assert costly_draws(busy_pace(), draws(device_ns=4 * MS)) is None
    assert costly_draws(busy_pace(), draws("aten::sort")) is None
    assert costly_draws(busy_pace(), drawn(StepOp)) is None


def test_with_replacement_nothing_is_certain() -> None:
    alone = drawn(StepOp, {"name": "aten::multinomial", "per_step": 1.0, "device_ns": 40 * MS})
    advice = assert_bounded(costly_draws(busy_pace(), alone), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0, 4 * MS))
    assert "put back" not in advice.because


@pytest.mark.slow
def test_negatives_of_a_recommender() -> None:
    """A real program: with a search in a cumulative sum its step is 45 % shorter."""
    report = reported(LIBRARY / "twelfth_film_picker.faulty.light.pt.trace.json.gz")
    assert report.findings[0].id == "costly-draws"
    assert report.findings[0].gain.low_share < 0.446 < 1.05 * report.findings[0].gain.high_share
