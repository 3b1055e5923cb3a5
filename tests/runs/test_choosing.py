"""Which rank and which pass of a run is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runs.folders import rank_document, timed

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.runs import MeasuredStep, Pass, RankRecord, Run
from stepscope.runs.choosing import choose_pass, choose_rank
from stepscope.runs.needs import NEEDED, SEES_MORE, needed_by_analysis, needed_by_sql

LIGHT, FULL = Pass("light", Path("light.json")), Pass("full", Path("full.json"))
TIMES = MeasuredStep(6_110_000, 6_100_000, 6_080_000, 6_140_000, 40)


def a_run(*ranks: tuple[int, tuple[Pass, ...]], measured: MeasuredStep | None = TIMES) -> Run:
    records = tuple(RankRecord(rank, None, passes, measured) for rank, passes in ranks)
    return Run(Path("RUN"), ("python", "train.py", "--lr", "1 e-3"), "", "", 0, len(records), records)


def test_the_lowest_rank_with_a_profile_is_taken() -> None:
    run = a_run((0, ()), (1, (LIGHT,)), (2, (LIGHT, FULL)))
    chosen = choose_rank(run)
    assert (chosen.record.rank, chosen.ranks) == (1, (1, 2))
    assert choose_rank(run, 2).full == FULL
    assert choose_rank(run).full is None


def test_a_rank_that_is_not_there() -> None:
    with pytest.raises(StepscopeError, match="no rank 7") as raised:
        choose_rank(a_run((0, (LIGHT,)), (3, (LIGHT,))), 7)
    assert raised.value.hint == "it has: 0, 3"


def test_only_times_are_told_with_what_to_type() -> None:
    with pytest.raises(
        StepscopeError, match=r"6\.11 ms ± 0\.5 % \(40 steps\) without the profiler"
    ) as raised:
        choose_rank(a_run((0, ())))
    assert raised.value.hint == "record again: stepscope run train.py --lr '1 e-3'"


def test_a_rank_without_a_profile_names_another() -> None:
    with pytest.raises(StepscopeError, match="rank 0 of RUN has no profile") as raised:
        choose_rank(a_run((0, ()), (1, (LIGHT,)), measured=None), 0)
    assert raised.value.hint == "another rank has one: --rank 1"


@pytest.mark.parametrize(
    "there, name, needed, taken",
    [
        ((LIGHT, FULL), None, "", LIGHT),
        ((LIGHT, FULL), None, "stacks", FULL),
        ((LIGHT, FULL), "light", "stacks", LIGHT),
        ((LIGHT, FULL), "full", "", FULL),
        ((LIGHT,), None, "stacks", LIGHT),
        ((FULL,), None, "", FULL),
    ],
)
def test_the_pass_that_is_taken(there: tuple[Pass, ...], name: str | None, needed: str, taken: Pass) -> None:
    assert choose_pass(choose_rank(a_run((0, there))), name, needed) == taken  # type: ignore[arg-type]


def test_a_pass_that_is_not_there() -> None:
    with pytest.raises(StepscopeError, match="no full pass") as raised:
        choose_pass(choose_rank(a_run((0, (LIGHT,)))), "full")
    assert raised.value.hint == "--pass light"


def test_what_needs_the_full_pass_is_an_analysis() -> None:
    known = {name for name, _ in registry.names("analyses")}
    assert set(NEEDED) <= known
    assert needed_by_analysis("ops", {"by": "user_frame"}) == "stacks"
    assert needed_by_analysis("ops", {"by": "name"}) == ""
    assert needed_by_analysis("kernels", {}) == ""


def test_rules_that_see_more_in_a_full_pass() -> None:
    """A name that is no rule's would be a rule that was renamed, and is heard no more."""
    assert set(SEES_MORE) <= {name for name, _ in registry.names("findings.rules")}


@pytest.mark.parametrize(
    "sql, needed",
    [
        ("SELECT count(*) FROM ops", ""),
        ("SELECT * FROM python_frames", "stacks"),
        ("SELECT * FROM analyses.modules", "stacks"),
        ("SELECT sum(bytes) FROM memory_events", "memory"),
        ("SELECT args->>'$.\"Input Dims\"' FROM ops", "shapes"),
        ("SELECT * FROM analyses.kernels", ""),
    ],
)
def test_what_a_query_needs(sql: str, needed: str) -> None:
    assert needed_by_sql(sql) == needed


def test_documents_of_tests_are_timed() -> None:
    """The folders that other tests make have an interval around their mean."""
    told = rank_document(**timed(1_000_000))["unprofiled_step_ns"]
    assert told["low"] < told["mean"] < told["high"]
