from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.iterations import Iteration
from stepscope.analyses.rooflines import Roofline
from stepscope.findings import Advice, NotKnown
from stepscope.findings.facts import Facts
from stepscope.findings.rules.decode_bandwidth import decode_bandwidth


def judged(
    *, kind: str | None = "decode", read_bytes: int = 96_000_000_000, covered: float = 1.0,
    told: Facts | None = None, **thresholds: Any,
) -> Advice | None:  # fmt: skip
    """Ten steps of 10 ms, busy for 9.8; 4.8 GB take an H200 one ms."""
    return decode_bandwidth(
        busy_pace(),
        told or facts(),
        drawn(Iteration, *[{"kind": kind, "dur_ns": 10 * MS}] * 10),
        drawn(
            Roofline,
            {"family": "matmul", "bytes": read_bytes, "work_ns": 80 * MS, "covered_share": covered},
            {"family": "elementwise", "bytes": 10**15, "work_ns": 10 * MS},
        ),
        **thresholds,
    )


def test_it_fires_with_the_time_above_what_reading_takes() -> None:
    advice = assert_bounded(judged(), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.0, 7.8 * MS))
    assert advice.evidence["needed_ns"] == 2 * MS


def test_it_is_silent_near_the_bandwidth() -> None:
    assert judged(read_bytes=300_000_000_000) is None
    assert judged(read_bytes=300_000_000_000, most_bandwidth=0.7) is not None
    assert judged(least_share=0.9) is None
    assert judged(read_bytes=0) is None


def test_it_is_silent_where_steps_do_not_only_decode() -> None:
    assert judged(kind="mixed") is None
    assert judged(kind=None) is None


def test_it_says_what_the_profile_does_not_tell() -> None:
    with pytest.raises(NotKnown) as unknown:
        judged(covered=0.03)
    assert "record_shapes=True" in unknown.value.record
    with pytest.raises(NotKnown, match="bandwidth"):
        judged(told=facts(devices=()))
