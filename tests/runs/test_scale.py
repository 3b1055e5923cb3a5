"""Very many ranks: time and memory of the head stay within bounds, and the answer is the same."""

from __future__ import annotations

import pytest
from tests.runs.drawn import Fault, Plan, draw
from tests.runs.programs import data_parallel
from tests.runs.scaled import many_times


@pytest.mark.slow
def test_five_hundred_ranks() -> None:
    program = data_parallel(8, layers=5, overlapped=False)
    plan = Plan(
        program, ranks=8, steps=6, jitter_ns=3_000, noise=0.01, faults=(Fault(3, "input", 5_000_000),)
    )
    run = many_times(draw(plan).run, 64)
    assert len(run.table("collectives")) == 30
    assert {row.group_ranks for row in run.table("collectives")} == {"0-511"}
    assert len(run.table("collective_ranks")) == 30 * 512
    clocks = list(run.table("clocks"))
    assert [row.offset_ns for row in clocks] == pytest.approx(
        [-(rank // 8) * 1_234_567 for rank in range(512)], abs=2_000
    )
    assert max(row.error_ns for row in clocks) < 4_000
    # The rank that is drawn late is there sixty-four times: the lowest of them is the last one.
    first = next(iter(run.table("stragglers")))
    assert (first.rank, first.cause) == (3, "input")
