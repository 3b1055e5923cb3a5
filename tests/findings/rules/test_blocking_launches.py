from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, pace

from stepscope.analyses._doubts import Doubt
from stepscope.analyses.launches import Launch
from stepscope.findings import Advice
from stepscope.findings.pace import Pace
from stepscope.findings.rules.blocking_launches import blocking_launches

FOUND = {"what": "blocking launches", "count": 90, "explanation": "100 % of the calls return late."}


def advised(
    step: Pace, found: dict[str, Any] = FOUND, *, host_ns: int = 0, **thresholds: float
) -> Advice | None:
    return blocking_launches(step, drawn(Doubt, found), drawn(Launch, {"host_ns": host_ns}), **thresholds)


def shares(advice: Advice | None, step: Pace) -> tuple[float, float]:
    gain = step.gain(assert_bounded(advice, step).saving)
    return gain.low_share, gain.high_share


def test_where_the_host_is_longer_the_step_shrinks_by_the_devices_work() -> None:
    step = pace(busy_ns=2.0 * MS, late_ns=8.0 * MS)
    advice = assert_bounded(advised(step), step)
    assert shares(advice, step) == pytest.approx((2 / 9, 2 / 7))
    assert advice.evidence["blocking_launches"] == 90


def test_at_the_most_all_the_time_in_the_calls_goes() -> None:
    step = pace(busy_ns=2.0 * MS, late_ns=8.0 * MS)
    advice = assert_bounded(advised(step, host_ns=35 * MS), step)
    assert shares(advice, step) == pytest.approx((2 / 9, 3.5 / 7))


def test_where_the_device_is_longer_the_step_shrinks_by_the_waiting_for_the_host() -> None:
    step = pace(busy_ns=6.0 * MS, late_ns=4.0 * MS)
    advice = assert_bounded(advised(step), step)
    assert shares(advice, step) == pytest.approx((1 / 7, 3 / 9))


def test_it_is_silent_without_the_doubt() -> None:
    assert advised(pace(), {"what": "warm-up"}) is None


def test_it_is_silent_where_the_device_does_next_to_nothing() -> None:
    assert advised(pace(busy_ns=0.1 * MS)) is None
    assert advised(pace(busy_ns=0.1 * MS), least_share=0.001) is not None
