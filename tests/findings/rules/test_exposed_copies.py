from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, changed, drawn, facts

from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.copies import Copy
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings.rules.exposed_copies import exposed_copies
from stepscope.tables import Table

# Ten steps of 10 ms: 1 ms of copies each with nothing beside it, and 8 ms of kernels.
PINNED = {
    "direction": "HtoD",
    "host_memory": "pinned",
    "calls": 10,
    "bytes": 500_000_000,
    "total_ns": 10 * MS,
    "exposed_ns": 10 * MS,
    "gb_per_s": 50.0,
}
PAGEABLE = {**PINNED, "host_memory": "pageable", "bytes": 27_500_000}


def judged(
    *copies: dict[str, Any],
    kernel_ns: int = 8 * MS,
    replay: Table[ChangedStep] | None = None,
    **thresholds: float,
) -> Advice | None:
    places = ({**row, "place": "train.py(7): load"} for row in copies)
    steps = drawn(Step, *({"step": number, "kernel_ns": kernel_ns} for number in range(10)))
    played = drawn(ChangedStep) if replay is None else replay
    tables = drawn(Copy, *copies), drawn(Copy, *places), steps, played
    return exposed_copies(busy_pace(), facts(), *tables, **thresholds)


def shares(advice: Advice | None) -> tuple[float, float]:
    gain = busy_pace().gain(assert_bounded(advice, busy_pace()).saving)
    return gain.low_share, gain.high_share


def test_it_fires_and_all_of_it_can_hide() -> None:
    advice = assert_bounded(judged(PINNED), busy_pace())
    assert advice.saving.device_ns == (1.0 * MS, 1.0 * MS)
    assert [str(one) for one in advice.locations] == ["train.py:7 load"]
    assert advice.evidence["exposed_share"] == 0.1


def test_no_more_can_hide_than_there_are_kernels() -> None:
    advice = assert_bounded(judged(PINNED, kernel_ns=MS // 2), busy_pace())
    assert advice.saving.device_ns == (0.25 * MS, 0.5 * MS)
    hidden = {**PINNED, "overlapped_ns": 2 * MS}
    advice = assert_bounded(judged(hidden, kernel_ns=MS // 2), busy_pace())
    assert advice.saving.device_ns == (0.15 * MS, 0.3 * MS)


def test_a_replay_narrows_the_bounds() -> None:
    def played(*gain: float) -> tuple[float, float]:
        """Of 1 ms of kernels at least half can hide a copy."""
        return shares(judged(PINNED, kernel_ns=MS, replay=changed(*gain) if gain else None))

    low, high = played()
    assert (low, high) == pytest.approx((0.049, 0.099))
    assert played(0.07, 0.075) == pytest.approx((0.85 * 0.07, 1.2 * 0.075))
    # What is reckoned stays a bound.
    assert played(0.3, 0.3) == pytest.approx((high, high))
    assert played(0.0, 0.0) == pytest.approx((low, low))


def test_of_pageable_copies_a_replay_tells_nothing() -> None:
    advice = assert_bounded(judged(PAGEABLE, replay=changed(0.3, 0.3)), busy_pace())
    assert advice.saving.device_ns == (50_000.0, 110_000.0)


def test_of_pageable_copies_only_the_time_on_the_bus_counts() -> None:
    advice = assert_bounded(judged(PAGEABLE), busy_pace())
    assert advice.saving.device_ns == (50_000.0, 110_000.0)  # 2.75 MB at 55 and at 25 GB/s
    assert "pin them first" in advice.because


def test_it_is_silent_where_copies_are_hidden_short_small_or_go_elsewhere() -> None:
    assert judged({**PINNED, "exposed_ns": 0, "overlapped_ns": 10 * MS}) is None
    assert judged({**PINNED, "exposed_ns": 2 * MS, "total_ns": 2 * MS}) is None
    assert judged({**PINNED, "bytes": 100_000}) is None
    assert judged({**PINNED, "direction": "DtoH"}) is None
    assert judged() is None


def test_it_is_silent_where_most_is_fetched_ahead() -> None:
    assert judged({**PINNED, "total_ns": 40 * MS, "overlapped_ns": 30 * MS}) is None


def test_tensors_that_come_back_cannot_be_fetched_ahead() -> None:
    several = {**PAGEABLE, "calls": 20}
    assert judged(several) is not None
    assert judged(several, {**several, "direction": "DtoH"}) is None


def test_without_a_size_the_time_of_a_copy_tells() -> None:
    assert judged({**PINNED, "bytes": None, "gb_per_s": None}) is not None
    assert judged({**PINNED, "bytes": None, "gb_per_s": None, "calls": 10_000}) is None


def test_the_threshold_works() -> None:
    assert judged({**PINNED, "exposed_ns": 2 * MS, "total_ns": 2 * MS}, finding_share=0.01) is not None
    assert judged(PINNED, finding_share=0.2) is None
