"""The interval of a gain: exact on pairs drawn by hand, honest on random ones that end when it is narrow."""

from __future__ import annotations

import math
import random

import pytest

from stepscope.trials import Estimate, Measurement, Promise
from stepscope.trials.estimates import estimate, is_enough, order

MS = 1_000_000


def run(mean_ms: float, steps: int = 20) -> Measurement:
    return Measurement((round(mean_ms * MS),) * steps)


def test_sides_take_turns() -> None:
    assert [order(pair) for pair in range(4)] == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_pairs_share_what_drifts() -> None:
    drift = (1.0, 1.3, 0.7, 1.1)
    found = estimate([run(10 * at) for at in drift], [run(8 * at) for at in drift])
    assert found is not None
    assert found.gain_share == pytest.approx(0.2)
    assert found.half_width < 0.005
    assert found.word == "faster"
    assert is_enough(found, 0.01)


def test_the_interval_is_students() -> None:
    ratios = (0.80, 0.82, 0.81)
    found = estimate([run(10)] * 3, [run(10 * ratio) for ratio in ratios])
    logs = [math.log(ratio) for ratio in ratios]
    middle = sum(logs) / 3
    error = math.sqrt(sum((one - middle) ** 2 for one in logs) / 2 / 3)
    assert found is not None
    assert found.low_share == pytest.approx(1 - math.exp(middle + 1.2 * 4.3027 * error), rel=1e-4)
    assert found.high_share == pytest.approx(1 - math.exp(middle - 1.2 * 4.3027 * error), rel=1e-4)


def test_steps_that_take_turns_are_as_good_as_equal_ones() -> None:
    turns = tuple(MS * (2 if at % 2 else 18) for at in range(20))
    found = estimate([Measurement(turns)] * 3, [run(8)] * 3)
    assert found is not None
    assert found.gain_share == pytest.approx(0.2)
    assert 0 < found.half_width < 0.005


def test_one_pair_says_nothing() -> None:
    assert estimate([run(10)], [run(8)]) is None
    assert not is_enough(None, 0.5)


def test_two_pairs_are_not_enough() -> None:
    found = estimate([run(10)] * 2, [run(8)] * 2)
    assert found is not None
    assert not is_enough(found, 0.5)


@pytest.mark.parametrize(
    "low,high,word",
    [(0.1, 0.2, "faster"), (-0.2, -0.1, "slower"), (-0.01, 0.02, "noise"), (0.0, 0.1, "noise")],
)
def test_a_change_is_noise_if_the_interval_holds_zero(low: float, high: float, word: str) -> None:
    assert Estimate((low + high) / 2, low, high, 3).word == word


@pytest.mark.parametrize(
    "low,gain,high,kept",
    [
        (0.14, 0.15, 0.16, "inside"),
        (0.09, 0.11, 0.13, "within its error"),
        (0.17, 0.19, 0.21, "within its error"),
        (0.05, 0.06, 0.07, "less"),
        (0.24, 0.25, 0.26, "more"),
    ],
)
def test_a_promise_is_kept_or_not(low: float, gain: float, high: float, kept: str) -> None:
    assert Estimate(gain, low, high, 3).against(Promise(0.12, 0.18)) == kept


@pytest.mark.parametrize("between,within", [(0.003, 0.01), (0.005, 0.001), (0.014, 0.03)])
def test_the_interval_holds_the_truth_although_it_ends_when_it_is_narrow(
    between: float, within: float
) -> None:
    chance = random.Random(5)
    held, tries = 0, 80
    for _ in range(tries):
        sides: tuple[list[Measurement], list[Measurement]] = ([], [])
        drift, found = 0.0, None
        while not is_enough(found, 0.01) and len(sides[0]) < 10:
            drift += chance.gauss(0, 0.01)
            for side, mean in zip(sides, (10.0, 9.0), strict=True):
                around = mean * math.exp(drift + chance.gauss(0, between))
                steps = (round(MS * around * math.exp(chance.gauss(0, within))) for _ in range(10))
                side.append(Measurement(tuple(steps)))
            found = estimate(*sides)
        assert found is not None
        held += found.low_share <= 0.1 <= found.high_share
    assert held / tries >= 0.9
