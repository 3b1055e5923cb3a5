from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.needless_transfers import needless_transfers

STEP = mean_step(waiting_ns=0.0)
# Ten steps: four tensors of 1 MB each go and come back, 0.5 ms a step each way.
OUT = {
    "direction": "DtoH",
    "host_memory": "pageable",
    "place": "train.py(9): centred",
    "calls": 40,
    "bytes": 40_000_000,
    "total_ns": 5 * MS,
    "exposed_ns": 5 * MS,
}
BACK = {**OUT, "direction": "HtoD"}
WAITS = {"op": "aten::copy_", "starved_ns": 20 * MS}
SMALL = {**BACK, "calls": 640, "bytes": 5120, "total_ns": MS, "exposed_ns": MS}
MAKING = {
    "name": "aten::to",
    "user_frame": "train.py(9): centred",
    "calls": 1280,
    "launches": 1280,
    "starved_ns": 8 * MS,
}


def judged(
    *copies: dict[str, Any],
    syncs: tuple[dict[str, Any], ...] = (WAITS,),
    ops: tuple[dict[str, Any], ...] = (),
    between_ms: int = 0,
    **thresholds: float,
) -> Advice | None:
    phases = drawn(StarvingPhase, {"phase": "other", "starved_ns": between_ms * MS})
    tables = drawn(Copy, *copies), drawn(HostSync, *syncs), drawn(StepOp, *ops), phases
    return needless_transfers(STEP, *tables, **thresholds)


def test_it_fires_where_tensors_go_and_come_back() -> None:
    advice = assert_bounded(judged(OUT, BACK), STEP)
    assert advice.saving.waited_ns == pytest.approx((7 / 3 * MS, 3.0 * MS))
    assert advice.evidence["trips_per_step"] == 4
    assert [str(one) for one in advice.locations] == ["train.py:9 centred"]


def test_of_more_that_comes_only_what_went_counts() -> None:
    advice = assert_bounded(judged(OUT, {**BACK, "bytes": 80_000_000, "exposed_ns": 10 * MS}), STEP)
    assert advice.saving.waited_ns == pytest.approx((7 / 3 * MS, 3.0 * MS))


def test_one_tensor_a_step_may_be_a_result() -> None:
    advice = assert_bounded(judged({**OUT, "calls": 10}, {**BACK, "calls": 10}), STEP)
    assert advice.saving.waited_ns == (0.0, 3.0 * MS)
    assert advice.certainty == "possible"
    assert judged({**OUT, "calls": 10}, {**BACK, "calls": 10, "bytes": 50_000_000}) is None


def test_it_is_silent_where_nothing_comes_back() -> None:
    assert judged(OUT) is None
    assert judged(BACK) is None
    assert judged(OUT, {**BACK, "bytes": 400_000_000}) is None
    assert judged({**OUT, "calls": 5}, {**BACK, "calls": 5}) is None
    assert judged({**OUT, "host_memory": "pinned"}, {**BACK, "host_memory": "pinned"}) is None
    assert judged() is None


def test_it_is_silent_where_the_copies_cost_nothing() -> None:
    hidden = {"total_ns": 5 * MS, "exposed_ns": 0}
    assert judged({**OUT, **hidden}, {**BACK, **hidden}, syncs=()) is None


def test_it_fires_where_small_tensors_are_made_on_the_cpu() -> None:
    # Half of what aten::to launched are these copies: 0.4 ms a step inside, and 0.1 ms of latency with them;
    # 2 ms after the waits.
    advice = assert_bounded(judged(SMALL, ops=(MAKING,)), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.25 * MS, 2.5 * MS))
    assert advice.evidence == {"copies_per_step": 64, "bytes_per_copy": 8, "starved_ns": 2_500_000}
    assert advice.locations[0].note == "64 copies a step"


def test_operators_inside_or_elsewhere_do_not_count() -> None:
    inside = {**MAKING, "name": "aten::_to_copy", "within": "aten::to"}
    elsewhere = {**MAKING, "user_frame": "train.py(80): learn"}
    node = {**MAKING, "phase": "backward"}
    advice = assert_bounded(judged(SMALL, ops=(MAKING, inside, elsewhere, node)), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.25 * MS, 2.5 * MS))


def test_what_makes_the_tensors_goes_and_the_python_around() -> None:
    making = {**MAKING, "phase": "forward", "per_step": 128.0}
    empty = {
        **making,
        "name": "aten::empty",
        "calls": 640,
        "per_step": 64.0,
        "launches": 0,
        "starved_ns": 4 * MS,
    }
    view = {**empty, "name": "aten::view", "calls": 650, "per_step": 65.0}
    advice = assert_bounded(judged(SMALL, ops=(making, empty), between_ms=3), STEP)
    # 0.4 ms in the copies and 0.4 ms in aten::empty, whose calls are as many; of 0.3 ms of Python the part of
    # 128 calls in 192; with a quarter as much of latency.
    assert advice.saving.starved_ns == pytest.approx((0.5 * MS, 1.25 * (0.8 + 0.2) * MS + 2.0 * MS))
    other = assert_bounded(judged(SMALL, ops=(making, view)), STEP)
    assert other.saving.starved_ns == pytest.approx((0.25 * MS, 2.5 * MS))


def test_the_thresholds_work() -> None:
    assert judged(SMALL, ops=(MAKING,), least_copies=65) is None
    assert judged({**SMALL, "calls": 150}, ops=(MAKING,)) is None
    assert judged(SMALL, ops=(MAKING,), least_share=0.3) is None
    assert judged(OUT, BACK, least_share=0.5) is None
