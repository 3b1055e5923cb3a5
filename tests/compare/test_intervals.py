"""How sure a change is: from steps, from runs, and from what has to be assumed."""

from __future__ import annotations

import random

import pytest

from stepscope.compare import Interval
from stepscope.compare.intervals import BETWEEN_RUNS, LONE_STEPS, interval_of, spread_of
from stepscope.student import t_quantile

MS = 1_000_000


@pytest.mark.parametrize(
    "degrees,wanted", [(1, 12.706), (2, 4.303), (3, 3.182), (4.5, 2.659), (10, 2.228), (1000, 1.962)]
)
def test_students_t(degrees: float, wanted: float) -> None:
    assert t_quantile(degrees) == pytest.approx(wanted, abs=0.002)


def shares(interval: Interval | None, before: float) -> tuple[float, float]:
    assert interval is not None
    return interval.low_ns / before, interval.high_ns / before


def test_equal_steps_of_one_run_leave_what_is_assumed() -> None:
    interval = interval_of([[100 * MS] * 5], [[100 * MS] * 5])
    assert shares(interval, 100 * MS) == pytest.approx((1 / (1 + BETWEEN_RUNS) - 1, BETWEEN_RUNS), abs=1e-6)
    assert interval is not None
    assert interval.assumed_share == BETWEEN_RUNS
    assert "5 and 5 steps" in interval.basis
    assert "assuming that runs differ by 3 %" in interval.basis


def test_a_change_below_what_runs_differ_by_is_noise() -> None:
    low, high = shares(interval_of([[100 * MS] * 50], [[102 * MS] * 50]), 100 * MS)
    assert low < 0 < high
    low, high = shares(interval_of([[100 * MS] * 50], [[104 * MS] * 50]), 100 * MS)
    assert 0 < low < 0.04 < high


def test_single_steps_assume_more() -> None:
    interval = interval_of([[100 * MS]], [[109 * MS]])
    assert interval is not None
    assert interval.low_ns < 0 < interval.high_ns
    assert interval.assumed_share == LONE_STEPS
    assert "10 % is assumed" in interval.basis


def test_a_single_step_borrows_how_the_other_side_varies() -> None:
    alone = interval_of([[90 * MS, 100 * MS, 110 * MS]], [[100 * MS]])
    both = interval_of([[90 * MS, 100 * MS, 110 * MS]], [[90 * MS, 100 * MS, 110 * MS]])
    assert alone is not None
    assert both is not None
    assert alone.high_ns > both.high_ns


def test_runs_tell_how_runs_vary() -> None:
    before = [[100 * MS] * 10, [101 * MS] * 10, [99 * MS] * 10]
    after = [[98 * MS] * 10, [97 * MS] * 10, [96 * MS] * 10]
    interval = interval_of(before, after)
    assert interval is not None
    assert interval.assumed_share is None
    assert interval.basis == "Based on the means of 3 and 3 runs."
    # Welch on the means: they differ by 3, with deviations of 1 in three runs each, and t of 4 degrees.
    assert shares(interval, 100 * MS) == pytest.approx((-0.052, -0.007), abs=0.002)


def test_repetitions_of_one_side_serve_both() -> None:
    before = [[100 * MS] * 10, [110 * MS] * 10, [90 * MS] * 10]
    low, high = shares(interval_of(before, [[96 * MS] * 10]), 100 * MS)
    assert low < -0.2
    assert high > 0.2


def test_what_has_no_steps_has_no_interval() -> None:
    assert interval_of([[]], [[1, 2]]) is None
    assert interval_of([], [[1, 2]]) is None
    assert interval_of([[0, 0]], [[1, 2]]) is None


def test_no_step_gets_shorter_than_nothing() -> None:
    low, high = shares(interval_of([[700 * MS, 900 * MS]], [[1 * MS, 2 * MS]]), 800 * MS)
    assert -1 <= low < high < 0


def test_the_interval_covers_the_truth_19_times_in_20() -> None:
    """Runs that differ by chance, three a side, with steps that vary more."""
    draw = random.Random(7)
    covered = 0
    for _ in range(400):
        sides = [
            [
                [round(middle * draw.gauss(1, 0.05)) for _ in range(8)]
                for middle in [truth * draw.gauss(1, 0.02) for _ in range(3)]
            ]
            for truth in (100 * MS, 90 * MS)
        ]
        low, high = shares(interval_of(sides[0], sides[1]), 100 * MS)
        covered += low <= -0.1 <= high
    assert 0.92 <= covered / 400 <= 0.99


def test_the_spread_of_one_side() -> None:
    assert spread_of([]) == 0
    assert spread_of([[5 * MS]]) == pytest.approx(0.0674, abs=1e-3)
    assert spread_of([[5 * MS] * 4]) == pytest.approx(0.0209, abs=1e-3)
    assert spread_of([[5 * MS] * 4, [5 * MS] * 4]) == 0
