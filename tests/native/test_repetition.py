"""The shortest stretch that, said again and again, is most of a sequence."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

from stepscope import _native


def found(
    symbols: Sequence[int], least_period: int = 1, least_share: float = 0.8
) -> tuple[int, int, int, bool, bool] | None:
    return _native.find_repetition(memoryview(array("q", symbols)), least_period, least_share)


def text(symbols: str) -> list[int]:
    return [ord(symbol) for symbol in symbols]


def test_whole_repetitions() -> None:
    assert found(text("abcabcabc")) == (0, 3, 9, False, False)


def test_a_broken_last_one_belongs_to_it() -> None:
    assert found(text("abcabcabcab")) == (0, 3, 11, False, False)


def test_what_stands_before_and_after() -> None:
    assert found(text("xabcabcabcabcy")) == (1, 3, 12, True, True)
    assert found(text("babcabcabcabcc")) == (1, 3, 12, False, False)


def test_twice_is_not_enough() -> None:
    assert found(text("abcdabcd")) is None


def test_too_little_of_the_whole() -> None:
    assert found(text("abcabcabc" + "uvwxyz")) is None
    assert found(text("abcabcabc" + "uvwxyz"), least_share=0.6) == (0, 3, 9, False, True)


def test_a_period_of_periods() -> None:
    # Layers (aab) repeat inside a step, but the step's own head and tail break their row.
    layers = "h" + "aab" * 4 + "t"
    assert found(text(layers * 3)) == (0, len(layers), 3 * len(layers), False, False)
    # The same with one step alone: the layers are what repeats, with strangers on both sides.
    assert found(text(layers)) == (1, 3, 12, True, True)


def test_every_symbol_comes_often() -> None:
    # No symbol is once in the period: aabbab, three times.
    assert found(text("aabbab" * 3)) == (0, 6, 18, False, False)


def test_the_least_period_is_kept() -> None:
    # abab...: of the multiples of 2 the first that is long enough.
    assert found(text("ab" * 12), least_period=5) == (0, 6, 24, False, False)


def test_a_break_in_the_middle() -> None:
    # One strange symbol in the middle: neither half is 80 % of the whole.
    assert found(text("abc" * 5 + "x" + "abc" * 5)) is None


def test_nothing() -> None:
    assert found([]) is None
    assert found([1]) is None
    assert found([1, 1]) is None
    assert found([7, 7, 7]) == (0, 1, 3, False, False)


def slowly(symbols: Sequence[int], least_period: int, least_share: float) -> tuple[int, int, int] | None:
    """The definition, tried out: the shortest period with a long enough stretch, the first of the longest."""
    rows = len(symbols)
    for period in range(least_period, rows // 3 + 1):
        best, first, run = 0, 0, 0
        for at in range(rows - period):
            run = run + 1 if symbols[at] == symbols[at + period] else 0
            if run > best:
                best, first = run, at - run + 1
        if best and best + period >= max(3 * period, least_share * rows):
            return first, period, best + period
    return None


@settings(max_examples=tries(400))
@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=7),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(1, 4),
)
def test_it_equals_the_definition(
    before: list[int], period: list[int], times: int, after: list[int], least: int
) -> None:
    symbols = [*before, *(period * times), *after]
    quick = found(symbols, least)
    assert (quick[:3] if quick else None) == slowly(symbols, least, 0.8)
