"""Each instant of a window goes to the smallest label that is there, exactly."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans import both, minus, size, union
from tests.trying import tries

from stepscope import _native

Interval = tuple[int, int, int]
"""Start, duration, label."""


def column(values: Sequence[int]) -> memoryview:
    return memoryview(array("q", values))


def swept(
    windows: Sequence[tuple[int, int]], intervals: Sequence[Interval], labels: int, batch: int = 1000
) -> list[list[int]]:
    sweep = _native.PrioritySweep([start for start, _ in windows], [end for _, end in windows], labels)
    for first in range(0, len(intervals), batch):
        rows = intervals[first : first + batch]
        sweep.push(*(column([row[place] for row in rows]) for place in range(3)))
    sweep.finish()
    return sweep.by_window_ns


def test_the_first_label_claims_and_the_rest_is_left() -> None:
    # Label 1 is there 0-10, label 0 4-6: of the window 2-12 that is 6, 2, and 2 for nobody.
    assert swept([(2, 12)], [(0, 10, 1), (4, 2, 0)], 2) == [[2, 6, 2]]


def test_intervals_of_one_label_that_overlap_count_once() -> None:
    assert swept([(0, 20)], [(0, 10, 0), (2, 3, 0), (8, 7, 0)], 1) == [[15, 5]]


def test_an_interval_over_several_windows_is_cut() -> None:
    assert swept([(0, 5), (5, 5), (5, 8), (20, 30)], [(3, 20, 0)], 1) == [[2, 3], [0, 0], [3, 0], [3, 7]]


def test_nothing_comes_of_nothing() -> None:
    assert swept([(0, 5)], [], 3) == [[0, 0, 0, 5]]
    assert swept([], [(0, 5, 0)], 1) == []
    assert swept([(0, 5)], [(1, 0, 0), (2, -3, 0), (3, _native.NULL, 0), (_native.NULL, 4, 0)], 1) == [[0, 5]]


def test_ends_beyond_all_numbers_are_clipped() -> None:
    assert swept([(0, 5)], [(2, (1 << 63) - 1, 0)], 1) == [[3, 2]]


@settings(max_examples=tries(300))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 3)), max_size=25),
    st.lists(st.integers(0, 50), max_size=8),
    st.integers(1, 7),
)
def test_it_equals_sets_of_spans(intervals: list[Interval], cuts: list[int], batch: int) -> None:
    cuts.sort()
    windows = list(zip(cuts[::2], cuts[1::2], strict=False))
    intervals.sort(key=lambda row: row[0])
    expected = []
    for start, end in windows:
        rest = union([(start, end)])
        parts = []
        for label in range(4):
            claimed = union((at, at + dur) for at, dur, own in intervals if own == label)
            parts.append(size(both(rest, claimed)))
            rest = minus(rest, claimed)
        expected.append([*parts, size(rest)])
    assert swept(windows, intervals, 4, batch) == expected


@pytest.mark.parametrize(
    "starts, ends, labels, why",
    [
        ([0], [], 1, "different length"),
        ([0], [1], 0, "labels"),
        ([0], [1], 65, "labels"),
        ([5], [4], 1, "sorted and disjoint"),
        ([0, 3], [4, 6], 1, "sorted and disjoint"),
    ],
)
def test_what_is_no_window_is_refused(starts: list[int], ends: list[int], labels: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        _native.PrioritySweep(starts, ends, labels)


@pytest.mark.parametrize(
    "rows, why",
    [
        ([(0, 1, 2)], "no such label"),
        ([(0, 1, -1)], "no such label"),
        ([(5, 1, 0), (4, 1, 0)], "order of start"),
    ],
)
def test_what_cannot_be_swept_is_refused_and_leaves_no_trace(rows: list[Interval], why: str) -> None:
    sweep = _native.PrioritySweep([0], [10], 2)
    with pytest.raises(ValueError, match=why):
        sweep.push(*(column([row[place] for row in rows]) for place in range(3)))
    with pytest.raises(ValueError, match="different length"):
        sweep.push(column([1]), column([1]), column([]))
    sweep.finish()
    assert sweep.by_window_ns == [[0, 0, 10]]


def test_an_interval_of_an_earlier_batch_is_not_overtaken() -> None:
    sweep = _native.PrioritySweep([0], [10], 1)
    sweep.push(column([6]), column([1]), column([0]))
    with pytest.raises(ValueError, match="order of start"):
        sweep.push(column([5]), column([1]), column([0]))
