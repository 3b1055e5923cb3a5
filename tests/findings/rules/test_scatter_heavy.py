from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, pace

from stepscope.analyses.late_phases import LatePhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.scatter_heavy import scatter_heavy


def op(name: str, per_step: float, late_ms: float, device_ms: float, **more: Any) -> dict[str, Any]:
    calls = round(10 * per_step)
    given = {
        "name": name, "phase": "forward", "user_frame": "agent.py(9): rollout", "calls": calls,
        "per_step": per_step, "late_ns": round(10 * late_ms * MS), "launches": calls,
        "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip
    return given | more


PHASES = (
    {"phase": "forward", "launches": 1000, "late_ns": 35 * MS},
    {"phase": "other", "late_ns": 5 * MS},
)
LOOP = op("aten::index_put_", 20, 1.0, 0.2)
ADDS = op("aten::add", 80, 1.0, 0.2)


def found(*ops: dict[str, Any], **thresholds: Any) -> Advice | None:
    return scatter_heavy(pace(), drawn(LatePhase, *PHASES), drawn(StepOp, *ops), **thresholds)


def test_a_loop_of_writes() -> None:
    inside = op("aten::_index_put_impl_", 20, 0.9, 0.2, within="aten::index_put_")
    advice = assert_bounded(found(LOOP, ADDS, inside), pace())
    # 19 of 20 calls go: 0.95 ms of late time. With latency 0.95 * 5/4 by time; 0.95 + 1 * 19/100 by launches.
    # Python between ops: 0.5 ms for 100 calls, so 0.095 for these.
    assert advice.saving.late_ns == pytest.approx((1.14 / 2 * MS, (1.1875 + 0.095) * MS))
    assert advice.saving.device_ns == pytest.approx((0.0, 0.19 * MS))
    assert advice.evidence["calls_per_step"] == 20
    assert advice.certainty == "likely"
    assert [(place.function, place.note) for place in advice.locations] == [("rollout", "20 calls a step")]


def test_sorts_of_accumulating_writes() -> None:
    sorting = op("aten::index_put_", 2, 0.1, 2.0, launches=300)
    advice = assert_bounded(found(sorting), pace())
    assert advice.saving.device_ns == (1.0 * MS, 1.8 * MS)
    assert advice.saving.late_ns == (0.0, 0.0)
    assert "index_add_" in advice.fix


def test_the_order_of_accumulating_writes_does_not_matter() -> None:
    """All but one of them go, where half of others may stay."""
    sorting = op("aten::index_put_", 20, 1.0, 0.2, launches=2000)
    advice = assert_bounded(found(sorting, ADDS), pace())
    # By time 0.95 * 5/4; the launches have all of the latency and more.
    assert advice.saving.late_ns[0] == pytest.approx(1.1875 * MS)


def test_what_a_loop_calls_beside_them_goes_with_them() -> None:
    sorting = op("aten::index_put_", 20, 0.2, 0.2, launches=2000)
    gather = op("aten::index", 20, 0.4, 0.2)
    other = op("aten::index", 10, 0.4, 0.2, user_frame="agent.py(99): learn")
    advice = assert_bounded(found(sorting, gather, other), pace())
    # 0.19 + 0.38 ms for sure, and half of 0.36; latency by time.
    assert advice.saving.late_ns[0] == pytest.approx((0.57 + 0.18) * 1.25 * MS)


def test_where_loops_make_most_of_the_late_time_all_of_it_may_go() -> None:
    advice = assert_bounded(found(LOOP | {"late_ns": 25 * MS}, ADDS), pace())
    assert advice.saving.late_ns[1] == pace().late_ns


def test_a_write_for_each_layer_is_no_loop() -> None:
    attention = op("aten::scaled_dot_product_attention", 10, 0.1, 0.1)
    assert found(LOOP, attention) is None
    assert found(LOOP, attention | {"per_step": 12.0}) is not None


def test_a_few_large_gathers_are_only_mentioned() -> None:
    assert found(op("aten::gather", 2, 0.1, 2.0)) is None  # nothing is known to be saved


def test_backward_is_no_loop() -> None:
    node = "autograd::engine::evaluate_function: IndexBackward0"
    assert found(op(node, 20, 1.0, 0.2, phase="backward")) is None
    advice = assert_bounded(found(op(node, 20, 1.0, 2.0, phase="backward", launches=4000)), pace())
    assert advice.saving.device_ns == (1.0 * MS, 1.8 * MS)


@pytest.mark.parametrize("name", ["aten::embedding", "aten::index_fancy", "aten::where", "aten::masked_fill"])
def test_other_operators_do_not_count(name: str) -> None:
    assert found(op(name, 20, 1.0, 0.2)) is None


def test_it_is_silent_where_little_is_spent() -> None:
    assert found() is None
    assert found(op("aten::index_put_", 20, 0.05, 0.01)) is None
    assert found(LOOP, least_share=0.2) is None
