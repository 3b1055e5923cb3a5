from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import H200, MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice
from stepscope.findings._copying import bus_of
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.pageable_copies import pageable_copies

# Ten steps: 11 MB each, 2 ms of copies with nothing beside them. At 55 GB/s that takes 0.2 ms, at 25 0.44 ms.
PAGEABLE = {
    "direction": "HtoD",
    "host_memory": "pageable",
    "calls": 10,
    "bytes": 110_000_000,
    "total_ns": 20 * MS,
    "exposed_ns": 20 * MS,
    "host_ns": 21 * MS,
    "blocked_ns": 20 * MS,
}
PINNED = {
    "direction": "HtoD",
    "host_memory": "pinned",
    "calls": 10,
    "bytes": 110_000_000,
    "gb_per_s": 50.0,
}


def judged(
    *copies: dict[str, Any],
    syncs: tuple[dict[str, Any], ...] = (),
    step: MeanStep | None = None,
    told: Facts | None = None,
    **thresholds: float,
) -> Advice | None:
    table = drawn(Copy, *copies)
    places = drawn(Copy, *({**row, "place": "train.py(7): load"} for row in copies))
    return pageable_copies(
        step or busy_pace(), told or facts(), table, places, drawn(HostSync, *syncs), **thresholds
    )


def test_it_fires_and_leaves_the_time_that_the_bus_takes() -> None:
    advice = assert_bounded(judged(PAGEABLE), busy_pace())
    # The device sets the pace for 98 % of the step, and idles 0.1 ms, maybe in the rest of these calls.
    assert advice.saving.waited_ns == pytest.approx((2.0 * MS - 440_000, 2.1 * MS - 0.98 * 200_000))
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert [str(one) for one in advice.locations] == ["train.py:7 load"]
    assert advice.evidence["bytes_per_step"] == 11_000_000


def test_pinned_copies_of_the_same_trace_tell_the_rate() -> None:
    advice = assert_bounded(judged(PAGEABLE, PINNED), busy_pace())
    assert advice.saving.waited_ns == pytest.approx((2.0 * MS - 11e6 / 45, 2.1 * MS - 0.98 * 220_000))
    assert "50 GB/s in this trace" in advice.because


def test_small_pinned_copies_do_not_tell_the_rate() -> None:
    assert not bus_of(drawn(Copy, {**PINNED, "calls": 1000}), H200).measured
    assert bus_of(drawn(Copy), None).slow < bus_of(drawn(Copy), H200).slow


def test_what_starved_after_the_waits_is_possible_but_not_sure() -> None:
    syncs = ({"op": "aten::copy_", "starved_ns": 5 * MS}, {"op": "aten::item", "starved_ns": 50 * MS})
    advice = assert_bounded(judged(PAGEABLE, syncs=syncs, step=mean_step()), mean_step())
    assert advice.saving.starved_ns == (0.0, 0.5 * MS)


def test_hidden_copies_do_not_count() -> None:
    assert judged({**PAGEABLE, "exposed_ns": 0}) is None
    advice = assert_bounded(judged({**PAGEABLE, "exposed_ns": 10 * MS}), busy_pace())
    assert advice.saving.waited_ns == pytest.approx((1.0 * MS - 220_000, 1.1 * MS - 0.98 * 100_000))


def test_it_is_silent_where_little_is_copied_or_as_fast_as_the_bus() -> None:
    assert judged({**PAGEABLE, "total_ns": 500_000, "exposed_ns": 500_000}) is None
    assert judged({**PAGEABLE, "total_ns": 2 * MS, "exposed_ns": 2 * MS}) is None
    assert judged(PINNED) is None
    assert judged({**PAGEABLE, "bytes": None}) is None
    assert judged() is None


def test_tensors_that_went_out_before_are_not_meant() -> None:
    several = {**PAGEABLE, "calls": 20}
    assert judged(several, {**several, "direction": "DtoH"}) is None
    assert judged(PAGEABLE, {**PAGEABLE, "direction": "DtoH"}) is not None


def test_the_threshold_works() -> None:
    assert judged(PAGEABLE, least_share=0.5) is None


def test_many_small_copies_are_no_batches() -> None:
    small = PAGEABLE | {"calls": 5000, "bytes": 20_000_000}
    assert judged(small) is None
    assert judged(small, PAGEABLE) is not None
    assert judged(small | {"calls": 150, "bytes": 1_500_000}) is not None, "a few beside the batch"
