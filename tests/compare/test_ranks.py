"""Two runs of ranks: pairs by number, the change of each, and what has no counterpart is said everywhere."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.present.drawn_comparison import comparison
from tests.runs.drawn import Fault, Plan, draw
from tests.runs.programs import data_parallel

from stepscope.compare import Comparison, RanksOfSide
from stepscope.compare.ranks import paired_ranks
from stepscope.present.diff.html import html
from stepscope.present.diff.json import json as as_json
from stepscope.present.diff.markdown import markdown
from stepscope.present.diff.terminal import terminal
from stepscope.runs.mean_step import run_mean_step_of
from stepscope.runs.reporting import in_depth, side_of

pytestmark = pytest.mark.slow

MS = 1_000_000
LATE = 2


def side(ranks: int, *faults: Fault) -> RanksOfSide:
    run = draw(Plan(data_parallel(ranks, layers=2, overlapped=False), ranks=ranks, faults=faults)).run
    return side_of(run, in_depth(run, run_mean_step_of(run)))


def between(before: RanksOfSide, after: RanksOfSide) -> Comparison:
    drawn = comparison()
    sides = (replace(drawn.sides[0], ranks=before), replace(drawn.sides[1], ranks=after))
    return Comparison(sides, (replace(drawn.changes[0], before=sides[0], after=sides[1]),))


@pytest.fixture(scope="module")
def changed() -> Comparison:
    """Four ranks of which one was late; six of which none is."""
    return between(side(4, Fault(LATE, "input", 5 * MS)), side(6))


def test_ranks_are_paired_by_number(changed: Comparison) -> None:
    paired = paired_ranks(changed.whole)
    assert paired is not None
    assert [one.rank for one in paired.pairs] == [0, 1, 2, 3]
    assert (paired.only_before, paired.only_after) == ((), (4, 5))
    # What the late rank no longer does itself, the others no longer wait for.
    own = {one.rank: one.own_change_ns for one in paired.pairs}
    assert own == {0: 0, 1: 0, LATE: -5 * MS, 3: 0}
    waits = {one.rank: one.wait_change_ns for one in paired.pairs}
    assert waits == {0: -5 * MS, 1: -5 * MS, LATE: 0, 3: -5 * MS}
    for one in paired.pairs:
        parts = one.own_change_ns + one.wait_change_ns + one.transfer_change_ns
        assert one.step_change_ns == parts == -5 * MS
    assert paired.most_changed[0].rank == LATE


def test_every_format_tells_the_ranks_and_those_without_a_counterpart(changed: Comparison) -> None:
    for told in (terminal(changed, width=80, color=False), markdown(changed), html(changed)):
        flat = " ".join(told.split())
        assert "Not compared: ranks 4,5, only after." in flat
    lines = [line.split() for line in terminal(changed, width=80, color=False).splitlines()]
    rank = next(words for words in lines if words[:2] == ["rank", str(LATE)])
    assert rank[-2:] == ["−5.00", "ms"]
    assert "Own time by rank" in html(changed)
    assert "| own time before |" in markdown(changed)
    found = json.loads(as_json(changed))
    assert found["changes"][0]["ranks"]["only_after"] == [4, 5]
    assert [one["own_change_ns"] for one in found["changes"][0]["ranks"]["pairs"]] == [0, 0, -5 * MS, 0]
    assert "each" not in found["sides"][0]["run"]


def test_single_ranks_have_no_pairs() -> None:
    drawn = comparison()
    assert paired_ranks(drawn.whole) is None
    assert "ranks" not in json.loads(as_json(drawn))["changes"][0]
    assert "own time by rank" not in terminal(drawn, width=80, color=False)
