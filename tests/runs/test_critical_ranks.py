"""The critical path across ranks, on drawn runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs import programs
from tests.runs.drawn import Fault, Plan, draw
from tests.trying import tries

from stepscope.runs.analyses.critical_ranks import critical_ranks
from stepscope.runs.analyses.run_steps import run_steps


def test_the_path_goes_through_the_late_rank() -> None:
    program = programs.data_parallel(4, overlapped=False)
    drawn = draw(Plan(program, ranks=4, steps=4, faults=(Fault(2, "host", 5_000_000),)))
    rows = list(critical_ranks(drawn.run, by="rank"))
    assert rows[0].rank == 2
    assert rows[0].kind == "own"
    assert rows[0].share > 0.5
    assert sum(row.share for row in rows) == pytest.approx(1.0)


@settings(max_examples=tries(4, 100), deadline=None)
@given(
    late=st.integers(0, 3),
    ns=st.integers(0, 20_000_000),
    overlapped=st.booleans(),
    seed=st.integers(0, 50),
    offset=st.integers(-(10**9), 10**9),
)
def test_the_path_is_as_long_as_the_step(
    late: int, ns: int, overlapped: bool, seed: int, offset: int
) -> None:
    plan = Plan(
        programs.data_parallel(4, overlapped=overlapped),
        ranks=4,
        steps=3,
        faults=(Fault(late, "input", ns),),
        hosts=2,
        offsets_ns=(0, offset),
        noise=0.2,
        seed=seed,
    )
    run = draw(plan).run
    lengths = {row.step: row.step_ns for row in run_steps(run)}
    found = dict.fromkeys(lengths, 0)
    ends: dict[int | None, int] = {}
    for row in critical_ranks(run):
        assert row.step is not None
        assert row.start_ns is not None
        assert row.dur_ns > 0
        assert ends.get(row.step, row.start_ns) == row.start_ns  # no hole and no overlap
        ends[row.step] = row.start_ns + row.dur_ns
        found[row.step] += row.dur_ns
    assert found == lengths


def test_two_groups_and_a_pipeline() -> None:
    for program, ranks in (
        (programs.tensor_data(2, 2), 4),
        (programs.pipeline(4), 4),
        (programs.sharded(4), 4),
    ):
        run = draw(Plan(program, ranks=ranks, steps=3)).run
        lengths = {row.step: row.step_ns for row in run_steps(run)}
        found = dict.fromkeys(lengths, 0)
        for row in critical_ranks(run):
            assert row.step is not None
            found[row.step] += row.dur_ns
        assert found == lengths
