"""Nesting: rows that are taken now and then are those that are taken at the end."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from stepscope import _native

COLUMNS = ("event", "start", "dur", "inside", "self", "uncovered", "fresh", "weight_self", "weight_once")


def drawn(seed: int, rows: int) -> list[tuple[int, int, int, int]]:
    """Start, duration, name and weight, sorted as runs are; some cross others, one outlives all."""
    chance = random.Random(seed)
    found = [(0, 10 * rows, 0, 1)]
    found += [
        (
            chance.randrange(5 * rows),
            chance.choice((0, 1, 7, 40, 900)),
            chance.randrange(5),
            chance.randrange(3),
        )
        for _ in range(rows)
    ]
    return sorted(found, key=lambda row: (row[0], -row[1]))


def swept(runs: list[list[tuple[int, int, int, int]]], piece: int, take_every: int) -> set[tuple[Any, ...]]:
    sweep = _native.ThreadSweep([2, 2])
    numbers = [sweep.add_run(at, at == 0, False, at == 1, 1 if at else -1, 0, -1) for at in range(len(runs))]
    given = [0] * len(runs)
    found: set[tuple[Any, ...]] = set()

    def take() -> None:
        for table in range(len(runs)):
            columns: dict[str, Any] = sweep.take(table, 1)
            got = [list(columns[name][0]) for name in COLUMNS] + [list(columns["depth"][0])]
            rows = list(zip(*got, *(list(one[0]) for one in columns["payload"]), strict=True))
            assert rows == sorted(rows, key=lambda row: (row[1], -row[2], row[0]))
            assert not found & {(table, *row) for row in rows}
            found.update((table, *row) for row in rows)

    turn = 0
    while (hungry := sweep.advance((1 << 63) - 1)) >= 0:
        at = numbers.index(hungry)
        rows = runs[at][given[at] : given[at] + piece]
        if rows:
            start, dur, name, weight = (array("q", column) for column in zip(*rows, strict=True))
            events = array("q", (at + 2 * (given[at] + place) for place in range(len(rows))))
            views = [memoryview(one) for one in (events, start, dur, name, weight)]
            sweep.give(hungry, views[0], views[1], views[2], views[3:])
            given[at] += len(rows)
        else:
            sweep.end_run(hungry)
        turn += 1
        if turn % take_every == 0:
            ready = sweep.rows(0)
            take()
            assert len(found) >= ready
            assert sweep.rows(0) == sweep.rows(1) == 0
    sweep.finish_thread()
    take()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_are_taken_early_are_the_same(seed: int) -> None:
    runs = [drawn(seed, 400), drawn(seed + 100, 300)]
    whole = swept(runs, 10_000, 10_000)
    assert len(whole) == sum(len(run) for run in runs)
    for piece, take_every in ((1, 1), (7, 3), (50, 2)):
        assert swept(runs, piece, take_every) == whole


def given_in_two(payload: list[list[memoryview | None]]) -> list[Any]:
    """The payload of two pieces of two rows each, as it comes back."""
    sweep = _native.ThreadSweep([2])
    run = sweep.add_run(0, True, False, False, -1, 0, -1)
    for number, columns in enumerate(payload):
        assert sweep.advance((1 << 63) - 1) == run
        times = [memoryview(array("q", (at + 20 * number, at + 20 * number + 10))) for at in (0, 100)]
        sweep.give(run, times[0], times[1], memoryview(array("q", (5, 5))), columns)
    assert sweep.advance((1 << 63) - 1) == run
    sweep.end_run(run)
    assert sweep.advance((1 << 63) - 1) == -1
    sweep.finish_thread()
    taken: Any = sweep.take(0, 1)
    return [None if one is None else (list(one[0]), one[1] and one[1].tolist()) for one in taken["payload"]]


def test_a_column_with_nothing_in_it() -> None:
    names, values = (memoryview(array("q", numbers)) for numbers in ((7, 8), (1, 2)))
    whole = ([7, 8, 7, 8], None)
    assert given_in_two([[names, values], [names, values]]) == [whole, ([1, 2, 1, 2], None)]
    partly = ([_native.NULL, _native.NULL, 1, 2], [0b1100])
    assert given_in_two([[names, None], [names, values]]) == [whole, partly]
    assert given_in_two([[names, None], [names, None]]) == [whole, None]


def test_a_column_by_which_events_are_told_apart_is_there() -> None:
    names = memoryview(array("q", (7, 8)))
    with pytest.raises(ValueError, match="a column that it needs"):
        given_in_two([[None, names]])


def operators_and_calls(sweep: _native.ThreadSweep) -> list[dict[str, Any]]:
    """What a sweep finds of operators, and of calls that only ask what they are in; both take turns."""
    for at in range(2):
        run = sweep.add_run(at, at == 0, False, at == 1, 1 if at else -1, -1 if at else 0, -1)
        events = array("q", range(at, 2000, 2))
        start = array("q", (10 * number + 3 * at for number in range(1000)))
        dur = array("q", (25 - 10 * (number % 3) - 3 * at for number in range(1000)))
        name = array("q", (number % 5 for number in range(1000)))
        assert sweep.advance(0) == run
        views = [memoryview(one) for one in (events, start, dur, name, dur)]
        sweep.give(run, views[0], views[1], views[2], views[3:])
        sweep.end_run(run)
    assert sweep.advance((1 << 63) - 1) == -1
    sweep.finish_thread()
    taken: list[dict[str, Any]] = [sweep.take(table, 0) for table in range(2)]
    return [{name: list(table[name][0]) for name in (*COLUMNS, "depth")} for table in taken]


def test_rows_that_only_ask_what_they_are_in() -> None:
    operators, calls = operators_and_calls(_native.ThreadSweep([2, 2]))
    assert len({*calls["inside"]}) > 600
    assert {*calls["depth"]} == {1, 2, 3}
    asked, inside = operators_and_calls(_native.ThreadSweep([2, 2], only_inside=[1]))
    assert asked == operators
    told = ("event", "start", "dur", "inside", "depth")
    assert inside == {name: calls[name] if name in told else [] for name in calls}


@pytest.mark.parametrize("run", [(1, True, False, False, -1, -1, -1), (1, False, False, False, -1, 0, -1)])
def test_a_table_that_only_asks_takes_no_other_runs(run: tuple[int, bool, bool, bool, int, int, int]) -> None:
    sweep = _native.ThreadSweep([1, 1], only_inside=[1])
    with pytest.raises(ValueError, match="more than what it is in"):
        sweep.add_run(*run)
    with pytest.raises(IndexError):
        _native.ThreadSweep([1], only_inside=[1])
