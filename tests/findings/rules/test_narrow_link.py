from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.gpu_health import GpuHealth
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.narrow_link import narrow_link

LINK = {
    "device": 0,
    "busy_samples": 50,
    "link_generation": 4,
    "max_link_generation": 4,
    "link_width": 4,
    "max_link_width": 16,
}
# Ten steps, 2 ms of copies each, at 7 GB/s of the 7.9 that four lanes have.
PINNED = {
    "direction": "HtoD",
    "host_memory": "pinned",
    "calls": 10,
    "bytes": 140_000_000,
    "total_ns": 20 * MS,
    "exposed_ns": 20 * MS,
}


def judged(
    link: dict[str, Any], *copies: dict[str, Any], step: MeanStep | None = None, **thresholds: float
) -> Advice | None:
    return narrow_link(step or mean_step(), drawn(GpuHealth, link), drawn(Copy, *copies), **thresholds)


def test_four_of_sixteen_lanes() -> None:
    advice = assert_bounded(judged(LINK, PINNED), mean_step())
    assert advice.saving.waited_ns == pytest.approx((2 * MS * (1 - 0.25 / 0.7), 2 * MS * 0.75))
    assert "4 of 16 lanes" in advice.because
    assert "7 GB/s" in advice.because


def test_copies_that_the_link_does_not_limit_promise_nothing_at_least() -> None:
    slow = {**PINNED, "bytes": 40_000_000}
    assert assert_bounded(judged(LINK, slow), mean_step()).saving.waited_ns == pytest.approx((0, 1.5 * MS))
    pageable = {**PINNED, "host_memory": "pageable"}
    assert assert_bounded(judged(LINK, pageable), mean_step()).saving.waited_ns[0] == 0
    both = assert_bounded(judged(LINK, PINNED, {**pageable, "direction": "DtoH"}), mean_step())
    assert both.saving.waited_ns == pytest.approx((2 * MS * (1 - 0.25 / 0.7), 4 * MS * 0.75))


def test_a_low_generation_counts_under_load_only() -> None:
    old = {**LINK, "link_width": 16, "link_generation": 1}
    advice = assert_bounded(judged(old, PINNED), mean_step())
    assert advice.saving.waited_ns[1] == pytest.approx(2 * MS * (1 - 0.25 / 1.969))
    assert judged({**old, "busy_samples": 0}, PINNED) is None


def test_lanes_alone_are_enough() -> None:
    unknown = {**LINK, "link_generation": None, "max_link_generation": None, "busy_samples": 0}
    assert assert_bounded(judged(unknown, PINNED), mean_step()).saving.waited_ns == pytest.approx(
        (0, 1.5 * MS)
    )


def test_it_is_silent_for_a_whole_link_and_where_little_is_copied() -> None:
    assert judged({**LINK, "link_width": 16}, PINNED) is None
    assert judged({**LINK, "link_width": None}, PINNED) is None
    assert judged({**LINK, "max_link_width": None}, PINNED) is None
    assert judged({**LINK, "device": 3}, PINNED) is None
    assert judged(LINK) is None
    assert judged(LINK, {**PINNED, "exposed_ns": 0}) is None
    assert judged(LINK, {**PINNED, "direction": "DtoD", "host_memory": None}) is None
    assert judged(LINK, PINNED, least_share=0.5) is None
    assert judged(LINK, PINNED, step=mean_step(device=None)) is None
