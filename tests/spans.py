"""Sets of instants, as sorted disjoint spans [start, end)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

Span = tuple[int, int]


def union(spans: Iterable[Span]) -> list[Span]:
    """The instants covered by any of the spans."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def both(left: list[Span], right: list[Span]) -> list[Span]:
    """The instants in both sets."""
    shared = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            shared.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def minus(left: list[Span], right: list[Span]) -> list[Span]:
    """The instants of the first set that are not in the second."""
    rest = []
    ends = [end for _, end in right]
    for begin, end in left:
        start = begin
        for at in range(bisect_right(ends, begin), len(right)):
            other_start, other_end = right[at]
            if other_start >= end:
                break
            if other_start > start:
                rest.append((start, other_start))
            start = max(start, other_end)
        if start < end:
            rest.append((start, end))
    return rest


def size(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


class Cover:
    """How much of any span a set of instants covers, by running sums."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._starts = [start for start, _ in spans]
        self._sums = [0, *accumulate(end - start for start, end in spans)]

    def within(self, start: int, end: int) -> int:
        return self._until(end) - self._until(start)

    def _until(self, instant: int) -> int:
        """Covered time before an instant."""
        at = bisect_right(self._starts, instant)
        beyond = max(0, self._spans[at - 1][1] - instant) if at else 0
        return self._sums[at] - beyond
