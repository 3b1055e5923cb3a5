"""Stretches of a sequence in which something repeats."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

from stepscope import _native


def found(symbols: Sequence[int] | str, most_period: int = 64, most: int = 5) -> list[tuple[int, int, int]]:
    numbers = [ord(one) for one in symbols] if isinstance(symbols, str) else symbols
    return _native.find_loops(memoryview(array("q", numbers)), most_period, 4, most)


def test_loops_by_hand() -> None:
    assert found("") == []
    assert found("abcabcabc") == []  # three times
    assert found("xabababab") == [(1, 2, 8)]
    assert found("xaaaay" + "bcbcbcbcb" + "z") == [(6, 2, 9), (1, 1, 4)]


def test_the_outer_loop_counts_and_its_shortest_period() -> None:
    assert found("aaab" * 8) == [(0, 4, 32)]


def test_bounds_are_kept() -> None:
    assert found("abcdefgh" * 4, most_period=7) == []
    assert len(found("aaaabbbbcccc", most=2)) == 2


@given(st.lists(st.integers(0, 2), max_size=40))
@settings(max_examples=tries(200))
def test_what_is_found_repeats_and_is_apart(symbols: list[int]) -> None:
    taken: set[int] = set()
    for first, period, rows in found(symbols, most=99):
        stretch = range(first, first + rows)
        assert rows >= 4 * period
        assert all(symbols[at] == symbols[at + period] for at in stretch[:-period])
        # It goes on neither before nor after, and no shorter period does as well.
        assert first == 0 or symbols[first - 1] != symbols[first - 1 + period]
        assert stretch.stop == len(symbols) or symbols[stretch.stop] != symbols[stretch.stop - period]
        for shorter in range(1, period):
            assert any(symbols[at] != symbols[at + shorter] for at in stretch[:-shorter])
        assert not taken.intersection(stretch)
        taken.update(stretch)
