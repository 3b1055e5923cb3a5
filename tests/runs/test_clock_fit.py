"""Clocks are fitted to within the error that the fit states, and what cannot be aligned is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from tests.runs.drawn import BASE_NS, Drawn, Group, Plan, Talk, Work, draw
from tests.runs.plans import plans
from tests.runs.programs import data_parallel, pipeline, tensor_data
from tests.trying import tries

from stepscope.runs.analyses.clocks import Clock
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import RankSummary


def _clocks(drawn: Drawn) -> dict[int, Clock]:
    return {row.rank: row for row in drawn.run.table("clocks")}


def _wrong_by(drawn: Drawn, clock: Clock, reference: int, true_ns: int) -> int:
    """How far a moment by the fitted clock is from what the clock of the reference showed."""
    local = drawn.truth.local(clock.rank, true_ns)
    drift = (clock.drift_ppm or 0.0) * 1e-6 * (local - (clock.since_ns or 0))
    return abs(local + (clock.offset_ns or 0) + round(drift) - drawn.truth.local(reference, true_ns))


@pytest.mark.slow
@given(plans(("data", "blocking", "two", "sharded", "tensor", "experts"), begins={}))
@settings(max_examples=tries(4, 250), deadline=None)
def test_offsets_and_drifts_are_recovered_within_the_stated_error(plan: Plan) -> None:
    drawn = draw(plan)
    clocks = _clocks(drawn)
    reference = next(rank for rank, clock in clocks.items() if clock.state == "reference")
    assert clocks[reference].offset_ns == 0
    for rank, clock in clocks.items():
        if clock.state == "unaligned":
            continue
        error = (clock.error_ns or 0) + (clocks[reference].error_ns or 0)
        ends = [meeting.last_ns for meeting in drawn.truth.meetings if rank in meeting.members]
        for moment in (ends[0], ends[len(ends) // 2], ends[-1]):
            assert _wrong_by(drawn, clock, reference, moment) <= error + plan.jitter_ns + 2


def test_the_error_is_as_large_as_ends_lie_apart() -> None:
    drawn = draw(Plan(data_parallel(4), hosts=2, steps=20, offsets_ns=(0, -3 * 10**9), jitter_ns=9_000))
    for clock in _clocks(drawn).values():
        assert 3_000 < (clock.error_ns or 0) < 9_000
        assert clock.drift_ppm is None
        assert clock.collectives == 60


def test_a_drift_is_told_if_the_span_shows_it() -> None:
    plan = Plan(data_parallel(4), hosts=2, steps=20, drifts_ppm=(0.0, 40.0), jitter_ns=2_000, noise=0.02)
    states = [(row.state, row.drift_ppm) for row in draw(plan).run.table("clocks")]
    assert [state for state, _ in states] == ["reference", "shared", "fitted", "shared"]
    assert states[0][1] is None
    assert states[2][1] == pytest.approx(40, abs=3)
    short = replace(plan, steps=2)
    assert [row.drift_ppm for row in draw(short).run.table("clocks")] == [None] * 4


def test_ranks_that_are_not_on_one_clock_are_not_taken_for_it() -> None:
    drawn = draw(Plan(data_parallel(4), hosts=2, offsets_ns=(0, 5_000_000), steps=4))
    same = [RankSummary(replace(one.facts, host="box"), one.tables) for one in drawn.run.summaries]
    table = ManyRanks("boxes", same, world_size=4).table("clocks")
    assert [row.offset_ns for row in table] == [0, 0, 5_000_000, 5_000_000]
    assert [row.state for row in table] == ["reference", "shared", "fitted", "fitted"]
    assert sum("it is not one clock, or they are matched wrongly" in note for note in table.notes) == 2


def test_groups_are_joined_through_common_ranks() -> None:
    drawn = draw(Plan(tensor_data(2, 4), ranks=8, hosts=4, steps=4, offsets_ns=(0, 10**6, -(10**7), 10**9)))
    assert [row.offset_ns for row in drawn.run.table("clocks")] == [
        0, 0, 10**6, 10**6, -(10**7), -(10**7), 10**9, 10**9,
    ]  # fmt: skip


def test_ranks_without_a_common_collective_stay_unaligned() -> None:
    groups = [Group("a", (0, 1)), Group("b", (2, 3))]

    def program(rank: int, step: int) -> list[Work | Talk]:
        return [Work(10**6), Talk("all-reduce", groups[rank // 2], 10**6)]

    table = draw(Plan(program, hosts=2, steps=4, named_hosts=False)).run.table("clocks")
    assert [row.state for row in table] == ["reference", "fitted", "unaligned", "unaligned"]
    assert [row.offset_ns for row in table] == [0, 0, None, None]
    assert any(note.startswith("Not aligned with the others: ranks 2,3.") for note in table.notes)


def test_what_does_not_end_together_aligns_nothing() -> None:
    group = Group("g", (0, 1, 2))

    def program(rank: int, step: int) -> list[Work | Talk]:
        late = Work(3 * 10**6 * (rank + 1))
        return [late, Talk("broadcast", group, 10**6), Work(10**6), Talk("reduce", group, 10**6)]

    table = draw(Plan(program, ranks=3, hosts=3, steps=4)).run.table("clocks")
    assert [row.state for row in table] == ["reference", "unaligned", "unaligned"]


def test_stages_on_one_host_share_its_clock_though_nothing_confirms_it() -> None:
    chain = pipeline(3, micro_batches=2)

    def program(rank: int, step: int) -> list[object]:
        return [op for op in chain(rank, step) if getattr(op, "kind", "") != "all-reduce"]

    table = draw(Plan(program, ranks=3, steps=3)).run.table("clocks")  # type: ignore[arg-type]
    assert [row.state for row in table] == ["reference", "shared", "shared"]
    assert [row.error_ns for row in table] == [None, None, None]
    assert any("no collective confirms it" in note for note in table.notes)


def test_local_time_of_a_drawn_clock() -> None:
    drawn = draw(Plan(data_parallel(2), ranks=2, hosts=2, offsets_ns=(0, 700), drifts_ppm=(0, 0)))
    assert drawn.truth.local(1, BASE_NS + 1_000) == BASE_NS + 300
