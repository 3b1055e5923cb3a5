"""Phrases that findings share."""

from __future__ import annotations

import pytest

from stepscope.findings._phrases import if_idle, often, times


@pytest.mark.parametrize(
    "count, what, told",
    [
        (1.0, "tensor", "1 tensor"),
        (1.02, "copy", "1 copy"),
        (2.0, "copy", "2 copies"),
        (2.5, "backward pass", "2.5 backward passes"),
        (1576.0, "launch", "1,576 launches"),
        (0.5, "read", "0.5 reads"),
        (0.0, "read", "0 reads"),
        (0.0084, "wait", "less than 1 wait"),
    ],
)
def test_times(count: float, what: str, told: str) -> None:
    assert times(count, what) == told


@pytest.mark.parametrize(
    "per_step, told",
    [
        (10.0, "10 reads a step"),
        (1.0, "1 read a step"),
        (0.5, "0.5 reads a step"),
        (0.25, "1 read in about 4 steps"),
        (0.0084, "1 read in about 119 steps"),
    ],
)
def test_often(per_step: float, told: str) -> None:
    assert often(per_step, "read") == told


def test_a_time_that_is_hardly_any_is_left_out() -> None:
    sentence = "The GPU waits {} for them."
    assert if_idle(1_500, sentence) == " The GPU waits 1.50 µs for them."
    assert if_idle(999, sentence) == ""
