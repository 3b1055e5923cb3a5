"""The late rank is named, with its cause and what the others wait for it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from tests.runs.drawn import Fault, Group, Join, Op, Plan, Talk, Work, draw
from tests.runs.plans import CAUSES, PROGRAMS, faulty_plans
from tests.runs.programs import data_parallel, tensor_data
from tests.trying import tries

from stepscope.runs.analyses.stragglers import Straggler


@pytest.mark.slow
@given(faulty_plans())
@settings(max_examples=tries(4, 250), deadline=None)
def test_the_rank_its_cause_and_its_lateness_are_those_of_the_fault(plan: Plan) -> None:
    run = draw(plan).run
    fault = plan.faults[0]
    table = list(run.table("stragglers"))
    assert (table[0].rank, table[0].cause) == (fault.rank, fault.cause)
    assert table[0].host == f"node{plan.host(fault.rank)}"
    of_rank = [row for row in table if row.rank == fault.rank]
    assert sum(row.cost_ns for row in of_rank) > sum(row.cost_ns for row in table) / 2
    assert {row.steps for row in of_rank} == {plan.steps}


@pytest.mark.slow
@given(faulty_plans(("data", "blocking", "sharded", "two", "tensor")))
@settings(max_examples=tries(3, 150), deadline=None)
def test_a_rank_is_late_by_what_the_fault_adds(plan: Plan) -> None:
    drawn = draw(plan)
    fault = plan.faults[0]
    found = [row for row in drawn.run.table("stragglers") if row.rank == fault.rank]
    worst = next(row for row in found if row.cause == fault.cause)
    # What the work varies by, and the part of a step after its last collective, count for the next step.
    assert worst.late_ns == pytest.approx(fault.ns, rel=0.2)


@pytest.mark.slow
@given(faulty_plans(("data", "blocking", "sharded", "two")))
@settings(max_examples=tries(3, 150), deadline=None)
def test_the_cost_is_what_others_wait_where_the_rank_comes_last(plan: Plan) -> None:
    drawn = draw(plan)
    waited: defaultdict[int, int] = defaultdict(int)
    for meeting in drawn.truth.meetings:
        for rank, arrival in meeting.arrivals.items():
            waited[meeting.last_rank] += min(meeting.ends[rank], meeting.last_ns) - arrival
    told: defaultdict[int, int] = defaultdict(int)
    for row in drawn.run.table("stragglers"):
        told[row.rank] += row.cost_ns * plan.steps
        assert row.exposed_cost_ns <= row.cost_ns + 2
    fault = plan.faults[0]
    assert told[fault.rank] == pytest.approx(waited[fault.rank], rel=0.02, abs=200_000)
    assert sum(told.values()) <= sum(waited.values()) + 200_000


def test_causes_sum_to_the_lateness_and_to_the_cost() -> None:
    faults = (Fault(1, "input", 2_000_000), Fault(1, "collector", 1_000_000))
    drawn = draw(Plan(data_parallel(3, overlapped=False), ranks=3, faults=faults, steps=4))
    alike: dict[str, Any] = {"rank": 1, "host": "node0", "steps": 4, "last_share": 4 / 12, "place": None}
    assert list(drawn.run.table("stragglers")) == [
        Straggler(cause=cause, cost_ns=2 * ns, exposed_cost_ns=2 * ns, late_ns=ns, **alike)
        for cause, ns in (("input", 2_000_000), ("collector", 1_000_000))
    ]


def test_a_fault_in_some_steps_costs_in_these_alone() -> None:
    fault = Fault(2, "compiling", 4_000_000, steps=(1,))
    (row,) = draw(Plan(data_parallel(4, overlapped=False), faults=(fault,), steps=4)).run.table("stragglers")
    assert (row.rank, row.cause, row.steps) == (2, "compiling", 1)
    assert (row.cost_ns, row.late_ns) == (3 * 4_000_000 // 4, 1_000_000)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_rank_that_waited_for_another_one_is_not_to_blame(cause: str) -> None:
    plan = Plan(tensor_data(2, 2), steps=4, faults=(Fault(1, cause, 3_000_000),))
    table = draw(plan).run.table("stragglers")
    assert {row.rank for row in table} == {1}
    first = next(iter(table))
    assert (first.cause, first.late_ns) == (cause, pytest.approx(3_000_000, rel=0.02))
    # Rank 0 waits in the group of neighbours, and those that are apart from both wait for them.
    assert first.cost_ns == pytest.approx(9_000_000, rel=0.03)


def test_two_late_ranks_are_both_named() -> None:
    faults = (Fault(0, "input", 3_000_000), Fault(3, "host", 5_000_000, steps=(0, 2)))
    table = draw(Plan(data_parallel(4, overlapped=False), faults=faults, steps=4)).run.table("stragglers")
    assert {(row.rank, row.cause) for row in table} == {(0, "input"), (3, "host")}


def test_nothing_is_said_below_the_error_of_the_clocks() -> None:
    plan = Plan(data_parallel(4), hosts=4, jitter_ns=50_000, faults=(Fault(1, "input", 10_000),), steps=6)
    table = draw(plan).run.table("stragglers")
    assert len(table) == 0
    assert "No rank came later than the others by more than the clocks may be wrong." in table.notes


@pytest.mark.slow
def test_stages_of_a_pipeline_wait_by_design() -> None:
    program, ranks = PROGRAMS["pipeline"]
    table = draw(Plan(program, ranks=ranks, steps=4)).run.table("stragglers")
    assert len(table) == 0


def test_time_in_two_collectives_at_once_counts_once() -> None:
    groups = [Group("a", (0, 1)), Group("b", (0, 1))]

    def program(rank: int, step: int) -> list[Op]:
        both = [
            Talk("all-reduce", group, 1000, stream=str(place), wait=False, tag=str(place), transfer_ns=1_000)
            for place, group in enumerate(groups)
        ]
        return [Work(4_000_000 if rank else 1_000_000), *both, Join("0"), Join("1")]

    rows = list(draw(Plan(program, ranks=2, steps=3)).run.table("stragglers"))
    assert sum(row.cost_ns for row in rows) == 3_000_000
    assert sum(row.late_ns for row in rows) == 3_000_000
    assert {row.rank for row in rows} == {1}


def test_a_missing_rank_may_be_the_late_one() -> None:
    table = draw(Plan(data_parallel(4), missing=(1,), faults=(Fault(1, "input", 10**7),))).run.table(
        "stragglers"
    )
    assert "A rank that is missing may be the late one." in table.notes
