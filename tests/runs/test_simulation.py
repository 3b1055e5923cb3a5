"""Ranks played together against runs that were worked out forward."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.drawn import Plan, draw
from tests.runs.played import Call, Own, PlayedForward, Wait, played_forward
from tests.runs.programs import data_parallel
from tests.trying import tries

from stepscope._native import CoupledPlay
from stepscope.runs import _moves
from stepscope.runs._moves import moves_of
from stepscope.runs.aligned import aligned
from stepscope.runs.many import ManyRanks
from stepscope.runs.simulation import Bound, RankChange, RunSimulator
from stepscope.store.columns import view

US = 1000


def simulator(drawn: PlayedForward) -> RunSimulator:
    return RunSimulator(moves_of(drawn.run, drawn.matched, drawn.offsets), drawn.steps_ns)


def late_input(late_us: int, *, ranks: int = 4, late: int = 2) -> PlayedForward:
    """One rank waits for its data before each step; backward hides the first of two all-reduces."""
    extra = {(late, step): late_us * US for step in range(3)}
    program: list[Own | Call | Wait] = [
        Own("input", extra),
        Own("compute", {}, 1000 * US),
        Call("first", 300 * US),
        Own("compute", {}, 500 * US),
        Call("second", 200 * US),
        Wait("first"),
        Wait("second"),
        Own("host", {}, 100 * US),
    ]
    return played_forward(program, ranks=ranks, steps=3, offsets=[0, 5_000, -70_000, 123][:ranks])


def test_unchanged_play_gives_back_the_steps() -> None:
    drawn = late_input(4000)
    played = simulator(drawn)
    assert played.error == 0
    assert played.is_usable
    assert played.steps([]) == drawn.steps_ns == [5800 * US] * 3


def test_without_its_cause_the_run_is_as_if_it_were_not_there() -> None:
    played, without = simulator(late_input(4000)), late_input(0)
    assert played.steps([RankChange((2,), "input")]) == without.steps_ns
    assert played.steps([RankChange((2,), "input", like="median rank")]) == without.steps_ns
    assert played.steps([RankChange((2,), "input", times=0.25)]) == late_input(1000).steps_ns
    assert played.saving_ns([RankChange((2,), "input")]) == (0.85 * 4000 * US, 1.2 * 4000 * US)


def test_lots_of_ranks_make_the_moves_of_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw(Plan(data_parallel(7, layers=2), ranks=7, steps=3, noise=0.1)).run
    found = aligned(run)
    calls = found.calls.filter(pc.is_valid(found.calls["number"]))

    def made() -> list[dict[str, object]]:
        moves = moves_of(run, calls, found.fit.table, found.shifts)
        own = moves.pieces["dur_ns"].to_pylist()
        rows = moves.moves.to_pylist()
        # Pieces are numbered in any order: what counts is how long each is.
        return [row | {"piece": None if row["piece"] is None else own[row["piece"]]} for row in rows]

    asked: list[int] = []
    some = _moves._some

    def counted(lot: ManyRanks, *more: Any) -> _moves.Moves:
        asked.append(len(lot.summaries))
        return some(lot, *more)

    monkeypatch.setattr(_moves, "_some", counted)
    whole = made()
    monkeypatch.setattr(_moves, "AT_ONCE", 3)
    monkeypatch.setattr(_moves, "CALLS_AT_ONCE", 1)
    assert made() == whole
    assert asked == [7, 3, 3, 1]


def test_other_ranks_and_causes_change_nothing() -> None:
    drawn = late_input(4000)
    played = simulator(drawn)
    for change in (RankChange((1,), "input"), RankChange((2,), "memory"), RankChange((0, 1, 3), "compute")):
        assert played.steps([change]) == drawn.steps_ns
        assert played.saving_ns([change]) == (0.0, 0.0)


def test_who_sets_the_pace() -> None:
    played = simulator(late_input(4000))
    pace = played.unchanged.pace
    assert pace is not None
    assert (pace.rank, pace.last_share) == (2, 1.0)
    assert pace.wait_ns == 3 * 4000 * US + 3 * 200 * US
    assert played.played([RankChange((2,), "input")]).pace is None


def test_a_faster_link() -> None:
    assert simulator(late_input(4000)).steps([RankChange(None, "transfer", times=0.5)]) == [5700 * US] * 3
    assert simulator(late_input(0)).steps([RankChange(None, "transfer", times=0.0)]) == [1600 * US] * 3


def test_pauses_in_different_steps_are_seen_by_one_bound_alone() -> None:
    pauses = Own("collector", {(rank, rank): 1000 * US for rank in range(3)})
    program: list[Own | Call | Wait] = [
        pauses,
        Own("compute", {}, 500 * US),
        Call("sum", 100 * US),
        Wait("sum"),
    ]
    played = simulator(played_forward(program, ranks=3, steps=3))
    change = [RankChange(None, "collector", like="median rank")]
    assert played.steps([]) == [1600 * US] * 3
    assert played.steps(change, Bound.LOW) == [1600 * US] * 3
    assert played.steps(change, Bound.HIGH) == [600 * US] * 3
    assert played.saving_ns(change) == (0.0, 1.2 * 1000 * US)


def test_a_play_that_is_off_is_not_used() -> None:
    drawn = late_input(4000)
    played = RunSimulator(moves_of(drawn.run, drawn.matched, drawn.offsets), [6000 * US] * 3)
    assert not played.is_usable
    assert played.reason == "without a change it is 3% off the recorded steps"


def test_an_order_in_which_some_wait_for_ever_is_not_used() -> None:
    program: list[Own | Call | Wait] = [
        Call("a", 10),
        Wait("a"),
        Own("compute", {}, 10),
        Call("b", 10),
        Wait("b"),
    ]
    drawn = played_forward(program, ranks=2, steps=1)
    # Each rank's first call is taken for the other's second.
    crossed = [
        number if rank == 0 else 1 - number for rank, number in zip(*columns(drawn.matched), strict=True)
    ]
    wrong = drawn.matched.set_column(2, "number", pa.array(crossed, pa.int64()))
    # Where a call ended before another arrived, it waited for nobody: both have to end late.
    wrong = wrong.set_column(4, "end_ns", pa.array([1000] * len(crossed), pa.int64()))
    played = RunSimulator(moves_of(drawn.run, wrong, drawn.offsets), drawn.steps_ns)
    assert not played.is_usable
    assert "wait for ever" in played.reason


def columns(matched: pa.Table) -> tuple[list[int], list[int]]:
    return matched["rank"].to_pylist(), matched["number"].to_pylist()


SMALL = st.integers(0, 5000).map(lambda us: us * US)


@st.composite
def programs(draw: st.DrawFn) -> tuple[PlayedForward, PlayedForward, int]:
    """A run in which one rank is late, and the same without that."""
    ranks, steps = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    late = draw(st.integers(0, ranks - 1))
    everywhere = [(rank, step) for rank in range(ranks) for step in range(steps)]
    parts: list[Own | Call | Wait] = []
    plain: list[Own | Call | Wait] = []
    for place in range(draw(st.integers(1, 4))):
        own = Own("compute", {key: draw(SMALL) for key in everywhere})
        extra = Own("input", {(late, step): draw(SMALL) for step in range(steps)})
        call = Call(f"call {place}", draw(st.integers(1, 800)) * US, stream=f"stream {place}")
        wait = [Own("compute", {key: draw(SMALL) for key in everywhere})] if draw(st.booleans()) else []
        parts += [extra, own, call, *wait, Wait(call.name)]
        plain += [own, call, *wait, Wait(call.name)]
    offsets = [draw(st.integers(-(10**9), 10**9)) for _ in range(ranks)]
    make = {"ranks": ranks, "steps": steps, "offsets": offsets}
    return played_forward(parts, **make), played_forward(plain, **make), late  # type: ignore[arg-type]


@given(programs())
@settings(max_examples=tries(4, 200), deadline=None)
def test_plays_come_to_what_the_program_takes(case: tuple[PlayedForward, PlayedForward, int]) -> None:
    drawn, without, late = case
    played = simulator(drawn)
    if sum(drawn.steps_ns):
        assert played.error == 0
    assert played.steps([]) == drawn.steps_ns
    assert played.steps([RankChange((late,), "input")]) == without.steps_ns


@given(st.lists(st.integers(-3, 9), max_size=20), st.lists(st.integers(-3, 9), max_size=20))
@settings(max_examples=tries(100), deadline=None)
def test_native_play_refuses_what_does_not_fit(some: list[int], others: list[int]) -> None:
    columns = [view(pa.array(one, pa.int64())) for one in (some, others)]
    calls = [columns[1]] * 6
    try:
        play = CoupledPlay(columns[0], columns[0], columns[0], calls)
        play.play(columns[0], columns[0], columns[1])
    except ValueError:
        pass


def test_native_play_refuses_a_call_of_another_rank() -> None:
    def ints(*values: int) -> memoryview:
        return view(pa.array(values, pa.int64()))

    calls = [ints(0), ints(-1), ints(-1), ints(0), ints(5), ints(5)]
    with pytest.raises(ValueError, match="another rank"):
        CoupledPlay(ints(0, 1), ints(0, 1), ints(-1, 0), calls)
