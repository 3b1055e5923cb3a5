from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import FasterDevice, MeanStep
from stepscope.findings.rules.scatter_heavy import scatter_heavy

NODE = "autograd::engine::evaluate_function: "
STEP = mean_step(
    unprofiled_ns=(10.0 * MS, 10.0 * MS),
    busy_ns=4.0 * MS,
    starved_ns=6.0 * MS,
    faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 1.0, 1.0)),
)
"""The host sets its pace."""


def op(name: str, per_step: float, host_ms: float, device_ms: float, **more: Any) -> dict[str, Any]:
    calls = round(10 * per_step)
    given = {
        "name": name, "phase": "forward", "user_frame": "agent.py(9): rollout", "calls": calls,
        "per_step": per_step, "host_ns": round(10 * host_ms * MS), "starved_ns": round(5 * host_ms * MS),
        "launches": calls, "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip
    return given | more


PHASES = ({"phase": "forward", "launches": 1000, "starved_ns": 35 * MS},)
LOOP = op("aten::index_put_", 20, 2.0, 0.2)
ADDS = op("aten::add", 30, 6.0, 0.2)
"""Host time of a step is 8 ms with these two."""


def found(*ops: dict[str, Any], step: MeanStep = STEP, **thresholds: Any) -> Advice | None:
    return scatter_heavy(step, drawn(StarvingPhase, *PHASES), drawn(StepOp, *ops), **thresholds)


def gained(*ops: dict[str, Any], step: MeanStep = STEP) -> tuple[float, float]:
    """Parts of the step."""
    gain = step.gain(assert_bounded(found(*ops, step=step), step).saving)
    return gain.low_share, gain.high_share


def test_a_loop_of_writes() -> None:
    inside = op("aten::_index_put_impl_", 20, 1.9, 0.2, within="aten::index_put_")
    advice = assert_bounded(found(LOOP, ADDS, inside), STEP)
    # A quarter of the host's work; 19 of 20 calls go, or half of that.
    assert gained(LOOP, ADDS, inside) == pytest.approx((0.95 / 8, 0.95 / 4))
    assert advice.evidence["calls_per_step"] == 20
    assert advice.certainty == "likely"
    assert [(place.function, place.note) for place in advice.locations] == [("rollout", "20 calls a step")]


def test_gradients_go_with_the_calls_of_a_loop() -> None:
    gather, gradient = op("aten::index", 20, 1.0, 0.2), op(NODE + "IndexBackward0", 20, 1.0, 0.2)
    assert gained(gather, gradient | {"phase": "backward"}, ADDS) == pytest.approx((0.95 / 8, 0.95 / 4))


def test_sorts_of_accumulating_writes() -> None:
    """Without a loop: of 30 kernels two stay, and half of the device's time or a tenth."""
    sorting = op("aten::index_put_", 2, 4.0, 2.0, launches=600)
    other = op("aten::add", 3, 4.0, 0.2)
    assert gained(sorting, other) == pytest.approx((14 / 30, 14 / 30))
    busy = busy_pace()
    assert gained(sorting, other, step=busy) == pytest.approx((1.0 / 9.9, 0.18), abs=0.01)
    advice = assert_bounded(found(sorting, other), STEP)
    assert "index_add_" in advice.fix
    assert "index_select" in advice.fix


def test_what_sorts_only_to_be_deterministic() -> None:
    adding = op("aten::index_add_", 3, 1.0, 4.0, launches=900)
    advice = assert_bounded(found(adding, step=busy_pace()), busy_pace())
    assert "use_deterministic_algorithms(False)" in advice.fix
    assert "instead of index_put_" not in advice.fix
    assert advice.evidence["sorting_device_ns"] == pytest.approx(4.0 * MS)
    plain = found(adding | {"launches": 60}, step=busy_pace())
    assert plain is None or plain.evidence["sorting_device_ns"] == 0


def test_sorts_in_a_loop_go_but_for_two_kernels() -> None:
    sorting = op("aten::index_put_", 20, 2.0, 0.2, launches=2000)
    assert gained(sorting, ADDS) == pytest.approx((0.8 / 4, 0.95 / 4))


def test_what_a_loop_calls_as_often_may_go_with_it() -> None:
    often = op("aten::mul", 40, 1.0, 0.2)
    others = op("aten::add", 30, 5.0, 0.2)
    assert gained(LOOP, often, others) == pytest.approx((0.95 / 8, (0.95 * 2 + 0.975) / 8))
    # Most of the loop is something else.
    assert gained(LOOP, often | {"host_ns": 21 * MS}, others)[1] < 0.95 / 4
    # Or it is one over layers.
    layers = op("aten::linear", 20, 0.1, 0.1)
    assert gained(LOOP, often, others, layers)[1] == pytest.approx(0.95 * 2 / 8.1)


def test_calls_that_wait_are_left_to_other_advice() -> None:
    gather, gradient = op("aten::index", 20, 2.0, 0.2), op(NODE + "IndexBackward0", 20, 2.0, 0.2)
    waits = op("aten::nonzero", 20, 1.0, 0.1, within="aten::index")
    calls = gather, gradient | {"phase": "backward"}, op("aten::nonzero", 20, 2.0, 0.1), ADDS
    assert found(*calls[:2], ADDS) is not None
    assert found(*calls, waits) is None


def test_a_write_for_each_layer_is_no_loop() -> None:
    attention = op("aten::scaled_dot_product_attention", 10, 0.1, 0.1)
    assert found(LOOP, attention) is None
    assert found(LOOP, attention | {"per_step": 12.0}) is not None


def test_a_few_large_gathers_are_only_mentioned() -> None:
    assert found(op("aten::gather", 2, 0.1, 2.0)) is None  # nothing is known to be saved


def test_backward_alone_is_no_loop() -> None:
    node = NODE + "IndexBackward0"
    assert found(op(node, 20, 1.0, 0.2, phase="backward"), ADDS) is None


@pytest.mark.parametrize("name", ["aten::embedding", "aten::index_fancy", "aten::where", "aten::masked_fill"])
def test_other_operators_do_not_count(name: str) -> None:
    assert found(op(name, 20, 1.0, 0.2)) is None


def test_it_is_silent_where_little_is_spent() -> None:
    assert found() is None
    assert found(op("aten::index_put_", 20, 0.05, 0.01)) is None
    assert found(LOOP, least_share=0.2) is None
