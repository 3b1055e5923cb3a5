"""Calls of different ranks are one collective if they were, and a note says what could not be told."""

from __future__ import annotations

from collections import defaultdict

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from tests.runs.drawn import Drawn, Fault, Meeting, Plan, draw
from tests.runs.plans import plans
from tests.runs.programs import data_parallel, pipeline, tensor_data
from tests.trying import tries

from stepscope.runs.aligned import aligned
from stepscope.runs.many import ManyRanks
from stepscope.runs.matching import matched
from stepscope.runs.rank_lists import ranks_in, ranks_text
from stepscope.runs.summary import CollectiveCall, RankSummary
from stepscope.tables import Table


def _found(drawn: Drawn) -> dict[int, list[tuple[int, Meeting]]]:
    """The truth about the calls of each collective that was found."""
    found: defaultdict[int, list[tuple[int, Meeting]]] = defaultdict(list)
    for row in aligned(drawn.run).calls.to_pylist():
        if row["number"] is not None:
            found[row["number"]].append((row["rank"], drawn.truth.calls[row["rank"], row["call"]]))
    return found


def _recorded(drawn: Drawn) -> dict[int, set[int]]:
    """Of every collective that two ranks recorded, these."""
    ranks: defaultdict[int, set[int]] = defaultdict(set)
    for (rank, _), meeting in drawn.truth.calls.items():
        ranks[id(meeting)].add(rank)
    return {key: found for key, found in ranks.items() if len(found) > 1}


@pytest.mark.slow
@given(plans())
@settings(max_examples=tries(4, 200), deadline=None)
def test_whatever_is_matched_was_one_collective(plan: Plan) -> None:
    drawn = draw(plan)
    found = _found(drawn)
    for members in found.values():
        assert len({id(meeting) for _, meeting in members}) == 1
        assert len(members) == len({rank for rank, _ in members})
    whole = {id(members[0][1]): {rank for rank, _ in members} for members in found.values()}
    assert whole == _recorded(drawn)


@pytest.mark.parametrize("sequence", [True, False])
def test_a_rank_that_counts_its_steps_from_its_own_first(sequence: bool) -> None:
    plan = Plan(data_parallel(4), steps=5, begins={2: 2}, renumbered=True, sequence=sequence)
    drawn = draw(plan)
    whole = {id(members[0][1]): len(members) for members in _found(drawn).values()}
    assert whole == {key: len(ranks) for key, ranks in _recorded(drawn).items()}
    assert [row.step for row in drawn.run.table("rank_steps") if row.rank == 2] == [2, 3, 4]
    assert any("number their steps differently" in note for note in matched(drawn.run).notes)


@pytest.mark.parametrize("hosts", [1, 2])
def test_groups_that_nobody_names_follow_from_who_leaves_together(hosts: int) -> None:
    plan = Plan(tensor_data(4, 2), ranks=8, steps=6, hosts=hosts, named=False, sequence=False)
    noisy = Plan(**{**vars(plan), "noise": 0.05, "jitter_ns": 4_000, "faults": (Fault(1, "input", 10**6),)})
    found = matched(draw(noisy).run)
    ranks = {group.ranks for gid, group in found.groups.items() if gid in set(found.calls["gid"].to_pylist())}
    assert {(0, 1, 2, 3), (4, 5, 6, 7)} <= ranks
    assert "Groups follow from who leaves collectives together: 0,1,2,3; 4,5,6,7." in found.notes


def test_calls_of_a_step_that_only_some_ranks_made_are_not_matched() -> None:
    drawn = draw(Plan(data_parallel(3, layers=2, overlapped=False), ranks=3, steps=3, sequence=False))
    first, *others = drawn.run.summaries
    calls = first.tables["calls"].arrow
    kept = Table(CollectiveCall, calls.filter(pc.not_equal(calls["call"], 2)))
    lacking = RankSummary(first.facts, {**first.tables, "calls": kept})
    found = matched(ManyRanks("cut", [lacking, *others], world_size=3))
    lost = [row for row in found.calls.to_pylist() if row["id"] is None]
    assert {row["step"] for row in lost} == {1}
    assert found.notes == ("5 calls could not be matched with those of other ranks: 5 all-reduce.",)


def test_a_missing_rank_is_named_in_its_collectives() -> None:
    drawn = draw(Plan(data_parallel(4), missing=(2,), steps=2))
    table = drawn.run.table("collectives")
    assert {(row.ranks, row.missing_ranks) for row in table} == {(3, "2")}
    assert any(note.startswith("Without 1 rank (2)") for note in table.notes)


def test_messages_are_told_apart_by_their_ends() -> None:
    drawn = draw(Plan(pipeline(4, micro_batches=5), steps=3, noise=0.05))
    rows = [row for row in drawn.run.table("collectives") if row.kind == "send-receive"]
    assert len(rows) == 3 * 5 * 2 * 3
    assert {row.ranks for row in rows} == {2}


@pytest.mark.parametrize(
    "ranks, text",
    [
        ([0, 1, 2, 3], "0,1,2,3"),
        (list(range(1024)), "0-1023"),
        (list(range(3, 203, 8)), "3-195:8"),
        ([5, 3, 4], "5,3,4"),
    ],
)
def test_lists_of_ranks_are_read_as_they_are_written(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
    assert ranks_in(text) == tuple(ranks)


@pytest.mark.parametrize("text", ["", None, "0, 1, …", "3-", "0-999999999", "a", "1:2", "0-8:0"])
def test_what_is_no_list_of_ranks_has_none(text: str | None) -> None:
    assert ranks_in(text) == ()
