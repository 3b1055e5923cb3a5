"""Durations of rows in one pass, and the times that they refuse."""

from __future__ import annotations

from array import array

import pytest

from stepscope import _native

FAR = 1 << 60


def durations(start: list[int], end: list[int]) -> list[int] | None:
    found = _native.durations_of(memoryview(array("q", start)), memoryview(array("q", end)), FAR)
    return None if found is None else list(found)


def test_times_that_can_be() -> None:
    assert durations([], []) == []
    assert durations([1, 5, -FAR + 1], [1, 9, FAR - 1]) == [0, 4, 2 * FAR - 2]


@pytest.mark.parametrize(
    "start,end", [(2, 1), (-FAR, 0), (0, FAR), (FAR, FAR), (2, -(1 << 63)), ((1 << 63) - 1, -(1 << 63))]
)
def test_one_that_cannot_be_is_enough(start: int, end: int) -> None:
    assert durations([0] * 9 + [start], [7] * 9 + [end]) is None


def test_as_many_starts_as_ends() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        durations([1], [1, 2])
