from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, pace

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.late_phases import LatePhase
from stepscope.analyses.phases import Phase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.pace import Pace
from stepscope.findings.rules.per_tensor_optimizer import per_tensor_optimizer

FRAME = "train.py(10): step"


def op(name: str, per_step: float, device_ms: float, **more: Any) -> dict[str, Any]:
    """An operator of the optimizer in 10 steps, that launches one kernel a call."""
    calls = round(10 * per_step)
    given = {
        "name": f"aten::{name}", "phase": "optimizer", "user_frame": FRAME, "calls": calls,
        "per_step": per_step, "device_ns": round(10 * device_ms * MS), "launches": calls,
    }  # fmt: skip
    return given | more


SGD = (op("mul_", 100, 0.2), op("add_", 200, 0.6))
STEPS = {"phase": "optimizer", "launches": 3000, "late_ns": 16 * MS, "device_ns": 8 * MS}


def found(
    *ops: dict[str, Any],
    step: Pace | None = None,
    name: str = "SGD",
    stretch_ns: int = 0,
    phase: dict[str, Any] = STEPS,
    **thresholds: Any,
) -> Advice | None:
    return per_tensor_optimizer(
        step or pace(),
        drawn(LatePhase, phase, {"phase": "forward", "launches": 1000, "late_ns": 24 * MS}),
        drawn(Phase, {"phase": "optimizer", "stretch_ns": stretch_ns}),
        drawn(StepOp, *ops),
        drawn(Annotation, {"name": "rollout"}, {"name": f"Optimizer.step#{name}.step"}),
        **thresholds,
    )


def test_tensors_that_are_updated_one_by_one() -> None:
    step = pace()
    advice = assert_bounded(found(*SGD), step)
    # 3 operators for each of 100 tensors. Late: 1.6 ms a step; with latency 1.6 * 5/4 = 2.0 ms by time, and
    # 1.6 + 1 * 3000/4000 = 2.35 ms by launches.
    assert advice.saving.late_ns == pytest.approx((2.0 * MS * 3 / 5, 2.35 * MS))
    # A pass takes the median of 0.2/(100*2) and 0.6/(200*3) ms, both 0.001; 5 passes of 100 tensors take 0.5
    # of 0.8 ms. One operator of three leaves a third.
    assert advice.saving.device_ns == pytest.approx((0.85 * 0.3 * MS, 0.8 * MS * 2 / 3))
    assert advice.evidence["turns_per_step"] == 100
    assert advice.evidence["operators_per_turn"] == 3
    assert advice.certainty == "certain"
    assert "torch.optim.SGD(parameters, lr=lr, fused=True)" in advice.fix
    assert "zero_grad" not in advice.fix
    assert [(place.line, place.note) for place in advice.locations] == [(10, "300 operators a step")]


def test_fills_of_zero_grad_count_at_the_most() -> None:
    without = assert_bounded(found(*SGD), pace())
    fills = op("zero_", 100, 0.1, late_ns=4 * MS)
    advice = assert_bounded(found(*SGD, fills), pace())
    # 0.4 ms of the late time are theirs.
    assert advice.saving.late_ns[0] == pytest.approx(1.2 * MS * 5 / 4 * 3 / 5)
    assert advice.saving.late_ns[1] == without.saving.late_ns[1]
    assert advice.saving.device_ns[1] == pytest.approx(without.saving.device_ns[1] + 0.1 * MS)
    assert "zero_grad(set_to_none=True)" in advice.fix


@pytest.mark.parametrize(
    "name, line",
    [
        ("AdamW", "torch.optim.AdamW(parameters, lr=lr, fused=True)"),
        ("RMSprop", "torch.optim.RMSprop(parameters, lr=lr, foreach=True)"),
        ("Own", "torch.compile(optimizer.step)"),
    ],
)
def test_the_fix_is_one_that_the_optimizer_knows(name: str, line: str) -> None:
    assert line in assert_bounded(found(*SGD, name=name), pace()).fix


def lists(device_ms: float) -> tuple[dict[str, Any], ...]:
    """AdamW on lists: 8 operators, 20 passes."""
    times = {"mul_": 4, "lerp_": 3, "addcmul_": 3, "sqrt": 2, "div_": 2, "add_": 3, "addcdiv_": 4}
    return tuple(
        op(f"_foreach_{name}", 2 if name == "mul_" else 1, device_ms * passes / 21)
        for name, passes in times.items()
    )


SHORT = {"phase": "optimizer", "launches": 80, "device_ns": 14 * MS}


def test_lists_of_tensors_are_mentioned_if_a_fused_kernel_gains_enough() -> None:
    step = pace(host_path_share=0.0, unprofiled_ns=(10.0 * MS, 10.0 * MS))
    advice = assert_bounded(found(*lists(1.4), step=step, name="AdamW", phase=SHORT), step)
    assert advice.certainty == "likely"
    # 7 of 21 passes stay, or one operator of 8.
    assert advice.saving.device_ns == pytest.approx((0.85 * 1.4 * MS * 14 / 21, 1.4 * MS * 7 / 8))
    assert found(*lists(0.14), step=step, name="AdamW", phase=SHORT) is None
    assert found(*lists(1.4), step=step, name="NAdam", phase=SHORT) is None


def test_a_large_optimizer_on_lists_is_left_to_another_rule() -> None:
    step = pace(host_path_share=0.5, unprofiled_ns=(10.0 * MS, 10.0 * MS), busy_ns=9.9 * MS)
    assert found(*lists(1.4), step=step, name="AdamW", phase=SHORT, stretch_ns=10 * MS) is not None
    assert found(*lists(1.4), step=step, name="AdamW", phase=SHORT, stretch_ns=20 * MS) is None


def test_it_is_silent_where_there_is_nothing_to_gain() -> None:
    assert found() is None
    assert found(op("item", 100, 0.0, launches=0)) is None
    assert found(op("_fused_adamw_", 1, 0.5), *SGD) is None
    assert found(op("mul_", 4, 0.2), op("add_", 8, 0.6)) is None
    assert found(*({**one, "phase": "forward"} for one in SGD)) is None


def test_the_threshold() -> None:
    assert found(*SGD, least_share=0.5) is None
