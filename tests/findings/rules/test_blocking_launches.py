from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, changed, drawn, mean_step

from stepscope.analyses._caveats import Caveat
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.launches import Launch
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.blocking_launches import blocking_launches
from stepscope.tables import Table

FOUND = {"what": "blocking launches", "count": 90, "explanation": "100 % of the calls return late."}


def advised(
    step: MeanStep,
    found: dict[str, Any] = FOUND,
    *,
    played: Table[ChangedStep] | None = None,
    **thresholds: float,
) -> Advice | None:
    played = played or changed(0.4, 0.5)
    return blocking_launches(
        step, drawn(Caveat, found), drawn(Launch, {"host_ns": 35 * MS}), played, **thresholds
    )


def shares(advice: Advice | None, step: MeanStep) -> tuple[float, float]:
    gain = step.gain(assert_bounded(advice, step).saving)
    return gain.low_share, gain.high_share


def test_the_gain_is_what_a_replay_without_waiting_says() -> None:
    step = mean_step(busy_ns=2.0 * MS, starved_ns=8.0 * MS)
    advice = assert_bounded(advised(step), step)
    assert shares(advice, step) == pytest.approx((0.85 * 0.4, 1.2 * 0.5))
    assert (advice.evidence["blocking_launches"], advice.evidence["blocked_ns"]) == (90, 3.5 * MS)


def test_a_replay_that_is_wrong_without_a_change_widens_the_gain() -> None:
    step = mean_step()
    played = changed(0.4, 0.5, simulated_ns=103 * MS // 10, unexplained_ns=MS // 5)
    assert shares(advised(step, played=played), step) == pytest.approx((0.34 - 0.05, 0.6 + 0.05))


def test_it_is_silent_without_the_doubt() -> None:
    assert advised(mean_step(), {"what": "warm-up"}) is None


def test_it_is_silent_where_the_device_does_next_to_nothing() -> None:
    assert advised(mean_step(busy_ns=0.1 * MS)) is None
    assert advised(mean_step(busy_ns=0.1 * MS), least_share=0.001) is not None
