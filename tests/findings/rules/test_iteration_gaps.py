from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, fix_for, mean_step

from stepscope.analyses.devices import Device
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, NotKnown
from stepscope.findings.program import Framework
from stepscope.findings.rules.iteration_gaps import iteration_gaps

VLLM = "execute_context_0(0)_generation_8(8)"


def judged(
    *, count: int = 5, gap_ns: int = 4 * MS, busy_between_ns: int = 0, name: str = VLLM, **row: Any
) -> Advice | None:
    """So many iterations of 10 ms, busy for 5 of them, with a gap before each but the first."""
    given = {"source": "annotation", "kind": "decode", "name": name, "dur_ns": 10 * MS, "busy_ns": 5 * MS}
    least = {"least_share": row.pop("least_share")} if "least_share" in row else {}
    rows = [
        {**given, "start_ns": place * (10 * MS + gap_ns), "host_gap_ns": gap_ns if place else None, **row}
        for place in range(count)
    ]
    busy = count * 5 * MS + busy_between_ns
    return iteration_gaps(
        mean_step(), drawn(Iteration, *rows), drawn(Device, {"window": "span", "busy_ns": busy}), **least
    )


def test_it_fires_with_the_gap() -> None:
    advice = assert_bounded(judged(), mean_step())
    assert advice.saving.waited_ns == (2.0 * MS, 4.0 * MS)
    assert advice.evidence["idle_between_share"] == pytest.approx(4 / 14)
    assert "--async-scheduling" in fix_for(advice, Framework.VLLM)


def test_no_more_than_the_device_works_can_be_hidden() -> None:
    advice = assert_bounded(judged(gap_ns=8 * MS), mean_step())
    assert advice.saving.waited_ns == (2.5 * MS, 5.0 * MS)


def test_the_fix_follows_the_engine() -> None:
    assert "--disable-overlap-schedule" in fix_for(judged(), Framework.SGLANG)
    assert "--async-scheduling" in fix_for(judged(), Framework.VLLM)
    assert "non_blocking=True" in fix_for(judged())


def test_work_between_the_ranges_is_no_gap() -> None:
    assert judged(busy_between_ns=16 * MS) is None


def test_it_is_silent_for_short_gaps() -> None:
    assert judged(gap_ns=MS) is None
    assert judged(gap_ns=MS, least_share=0.05) is not None
    assert judged(gap_ns=0, least_share=0.0) is None


def test_it_is_silent_where_nobody_serves() -> None:
    assert judged(kind=None) is None
    assert judged(source="mark") is None
    assert judged(count=0) is None


def test_one_iteration_tells_nothing() -> None:
    with pytest.raises(NotKnown):
        judged(count=1)
