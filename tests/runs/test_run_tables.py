"""Tables of a run: whole ones of a small case worked out by hand, and what holds of every run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.runs.drawn import BASE_NS, Drawn, Fault, Group, Op, Plan, Talk, Work, draw
from tests.runs.plans import plans
from tests.runs.programs import data_parallel
from tests.trying import tries

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.runs.analyses.collective_ranks import CollectiveRank
from stepscope.runs.analyses.collectives import Collective
from stepscope.runs.analyses.rank_steps import RankStep
from stepscope.runs.analyses.run_steps import RunStep
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CAUSES
from stepscope.store.arrow_sql import ask

PAIR = Group("pair", (0, 1))


def _small() -> Drawn:
    """Two ranks on one host, two steps: rank 1 computes 3 ms, rank 0 only 1 ms; then 2 MB in 40 µs."""

    def program(rank: int, step: int) -> list[Op]:
        return [
            Work(3_000_000 if rank else 1_000_000),
            Talk("all-reduce", PAIR, 2_000_000, transfer_ns=40_000),
            Work(500_000, "host"),
        ]

    return draw(Plan(program, ranks=2, steps=2))


def _after(ns: int) -> int:
    return BASE_NS + ns


def test_collectives_of_a_small_run() -> None:
    alike: dict[str, Any] = {
        "group": "pair", "group_ranks": "0,1", "kind": "all-reduce", "backend": "device", "dtype": "bf16",
        "bytes": 2_000_000, "calls": 1, "ranks": 2, "missing_ranks": None, "last_rank": 1,
        "wait_ns": 2_000_000, "transfer_ns": 40_000, "algorithm_gb_per_s": 50.0, "bus_gb_per_s": 50.0,
        "link_share": pytest.approx(50 / 450), "matched_by": "sequence",
    }  # fmt: skip
    table = _small().run.table("collectives")
    assert list(table) == [
        Collective(
            number=0, step=0, start_ns=_after(1_000_000), last_arrival_ns=_after(3_000_000),
            end_ns=_after(3_040_000), **alike,
        ),
        Collective(
            number=1, step=1, start_ns=_after(4_540_000), last_arrival_ns=_after(6_540_000),
            end_ns=_after(6_580_000), **alike,
        ),
    ]  # fmt: skip


def test_what_each_rank_spends_in_them() -> None:
    alike: dict[str, Any] = {
        "host": "node0", "group": "pair", "kind": "all-reduce", "calls": 1, "transfer_ns": 40_000,
    }  # fmt: skip
    waits: dict[str, Any] = {
        "wait_ns": 2_000_000, "exposed_ns": 2_040_000, "exposed_wait_ns": 2_000_000,
        "exposed_transfer_ns": 40_000,
    }  # fmt: skip
    comes: dict[str, Any] = {
        "wait_ns": 0,
        "exposed_ns": 40_000,
        "exposed_wait_ns": 0,
        "exposed_transfer_ns": 40_000,
    }
    assert list(_small().run.table("collective_ranks")) == [
        CollectiveRank(number=0, rank=0, step=0, arrival_ns=_after(1_000_000), **alike, **waits),
        CollectiveRank(number=0, rank=1, step=0, arrival_ns=_after(3_000_000), **alike, **comes),
        CollectiveRank(number=1, rank=0, step=1, arrival_ns=_after(4_540_000), **alike, **waits),
        CollectiveRank(number=1, rank=1, step=1, arrival_ns=_after(6_540_000), **alike, **comes),
    ]


def test_steps_of_ranks_and_of_the_run() -> None:
    run = _small().run
    nothing = {f"{cause}_ns": 0 for cause in CAUSES}
    alike: dict[str, Any] = {
        **nothing, "host": "node0", "steps": 1, "step_ns": 3_540_000, "host_ns": 500_000, "kernels": 1,
        "exposed_transfer_ns": 40_000, "exposed_unmatched_ns": 0,
    }  # fmt: skip
    early = {
        "own_ns": 1_500_000,
        "exposed_ns": 2_040_000,
        "exposed_wait_ns": 2_000_000,
        "compute_ns": 1_000_000,
    }
    late = {"own_ns": 3_500_000, "exposed_ns": 40_000, "exposed_wait_ns": 0, "compute_ns": 3_000_000}
    ends = [(_after(0), _after(3_540_000)), (_after(3_540_000), _after(7_080_000))]
    assert list(run.table("rank_steps")) == [
        RankStep(rank=rank, step=step, start_ns=ends[step][0], end_ns=ends[step][1], **{**alike, **own})
        for rank, own in ((0, early), (1, late))
        for step in (0, 1)
    ]
    assert list(run.table("run_steps")) == [
        RunStep(step, *ends[step], 3_540_000, ranks=2, first_rank=0, last_rank=0, longest_rank=1)
        for step in (0, 1)
    ]


@pytest.mark.slow
@given(plans())
@settings(max_examples=tries(3, 150), deadline=None)
def test_parts_sum_to_the_whole(plan: Plan) -> None:
    run = draw(plan).run
    exposed = defaultdict(int, {one.facts.rank: 0 for one in run.summaries})
    for row in run.stacked("exposed").to_pylist():
        exposed[row["rank"]] += row["dur_ns"]
    told: defaultdict[int, int] = defaultdict(int)
    for call in run.table("collective_ranks"):
        told[call.rank] += call.exposed_ns
        if call.number is None:
            assert call.wait_ns is call.exposed_wait_ns is call.exposed_transfer_ns is None
        else:
            assert call.wait_ns >= 0
            assert call.transfer_ns >= 0
            assert call.exposed_wait_ns >= 0
            assert call.exposed_wait_ns + call.exposed_transfer_ns == call.exposed_ns
    assert told == exposed
    for step in run.table("rank_steps"):
        assert step.own_ns + step.exposed_ns == step.step_ns
        assert sum(getattr(step, f"{cause}_ns") for cause in CAUSES) == step.own_ns
        parts = (step.exposed_wait_ns, step.exposed_transfer_ns, step.exposed_unmatched_ns)
        assert sum(parts) == step.exposed_ns


@pytest.mark.slow
@given(plans(begins={}))
@settings(max_examples=tries(3, 100), deadline=None)
def test_sums_over_all_are_those_of_each(plan: Plan) -> None:
    run = draw(plan).run
    for name, ways, figures in (
        ("collectives", ("kind", "group", "size"), ("wait_ns", "transfer_ns", "bytes", "calls")),
        (
            "collective_ranks",
            ("rank", "host", "group"),
            ("wait_ns", "exposed_ns", "exposed_wait_ns", "calls"),
        ),
    ):
        each = run.table(name)
        for by in ways:
            summed = run.table(name, by=by)
            for figure in figures:
                assert _sum(each, figure) == _sum(summed, figure), (name, by, figure)


def _sum(table: Any, figure: str) -> int:
    return sum(value for value in table.arrow[figure].to_pylist() if value is not None)


@pytest.mark.slow
@given(plans(("data", "blocking", "sharded", "tensor"), begins={}, missing=()))
@settings(max_examples=tries(3, 150), deadline=None)
def test_waits_are_the_true_ones_within_the_error_of_the_clocks(plan: Plan) -> None:
    drawn = draw(plan)
    errors = {row.rank: row.error_ns for row in drawn.run.table("clocks")}
    truth: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for meeting in drawn.truth.meetings:
        for rank, arrival in meeting.arrivals.items():
            truth[rank, meeting.step].append(meeting.last_ns - arrival)
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row in sorted(drawn.run.table("collective_ranks"), key=lambda one: one.arrival_ns):
        found[row.rank, row.step].append(row.wait_ns)
    unsure = 2 * max(errors.values()) + 2 * plan.jitter_ns + 100
    for key, waits in truth.items():
        assert len(waits) == len(found[key])
        for real, told in zip(sorted(waits), sorted(found[key]), strict=True):
            assert abs(real - told) <= unsure


def test_a_run_without_ranks_has_empty_tables() -> None:
    run = ManyRanks("nothing", [])
    for name, _ in registry.names("runs.analyses"):
        assert len(run.table(name)) == 0, name


def test_a_single_rank_waits_for_nobody() -> None:
    drawn = draw(Plan(data_parallel(2), ranks=2, missing=(1,), steps=2))
    run = drawn.run
    assert [row.state for row in run.table("clocks")] == ["reference"]
    assert len(run.table("collectives")) == 0
    assert len(run.table("stragglers")) == 0
    assert {row.number for row in run.table("collective_ranks")} == {None}
    assert sum(row.exposed_unmatched_ns for row in run.table("rank_steps")) > 0


def test_a_kind_of_group_that_is_unknown_is_refused() -> None:
    with pytest.raises(StepscopeError, match="unknown analysis of runs 'strugglers'"):
        ManyRanks("x", []).table("strugglers")


def test_sql_over_tables_sees_no_file_and_keeps_nothing() -> None:
    table = pa.table({"a": [1, 2, 3]})
    assert ask("SELECT sum(a)::BIGINT AS s FROM t WHERE a > $least", {"least": 1}, t=table).to_pylist() == [
        {"s": 5}
    ]
    with pytest.raises(StepscopeError, match="t does not exist"):
        ask("SELECT * FROM t")
    with pytest.raises(StepscopeError):
        ask("SELECT * FROM read_text('/etc/hostname')")


def test_link_shares_are_not_told_across_hosts() -> None:
    one = draw(Plan(data_parallel(4), steps=2, faults=(Fault(1, "input", 10**6),))).run.table("collectives")
    two = draw(Plan(data_parallel(4), steps=2, hosts=2)).run.table("collectives")
    assert all(row.link_share is not None and 0 < row.link_share < 1 for row in one)
    assert {row.link_share for row in two} == {None}
