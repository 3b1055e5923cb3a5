from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
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
STEPS = {"phase": "optimizer", "launches": 3000, "starved_ns": 16 * MS, "device_ns": 8 * MS}


def found(
    *ops: dict[str, Any],
    step: MeanStep | None = None,
    name: str = "SGD",
    stretch_ns: int = 0,
    phase: dict[str, Any] = STEPS,
    passes: int = 1,
    **thresholds: Any,
) -> Advice | None:
    return per_tensor_optimizer(
        step or mean_step(),
        drawn(StarvingPhase, phase, {"phase": "forward", "launches": 1000, "starved_ns": 24 * MS}),
        drawn(Phase, {"phase": "optimizer", "stretch_ns": stretch_ns}),
        drawn(StepOp, *ops),
        drawn(Annotation, {"name": "rollout"}, {"name": f"Optimizer.step#{name}.step"}),
        drawn(StepClass, {"steps": 10, "backward_passes": passes}),
        **thresholds,
    )


def test_tensors_that_are_updated_one_by_one() -> None:
    step = mean_step()
    advice = assert_bounded(found(*SGD), step)
    # 3 operators for each of 100 tensors. Late: 1.6 ms a step; with latency 1.6 * 5/4 = 2.0 ms by time, and
    # 1.6 + 1 * 3000/4000 = 2.35 ms by launches.
    assert advice.saving.starved_ns == pytest.approx((2.0 * MS * 3 / 5, 2.35 * MS))
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
    without = assert_bounded(found(*SGD), mean_step())
    fills = op("zero_", 100, 0.1, starved_ns=4 * MS)
    advice = assert_bounded(found(*SGD, fills), mean_step())
    # 0.4 ms of the late time are theirs.
    assert advice.saving.starved_ns[0] == pytest.approx(1.2 * MS * 5 / 4 * 3 / 5)
    assert advice.saving.starved_ns[1] == without.saving.starved_ns[1]
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
    assert line in assert_bounded(found(*SGD, name=name), mean_step()).fix


def lists(device_ms: float) -> tuple[dict[str, Any], ...]:
    """AdamW on lists: 8 operators, 20 passes."""
    times = {"mul_": 4, "lerp_": 3, "addcmul_": 3, "sqrt": 2, "div_": 2, "add_": 3, "addcdiv_": 4}
    return tuple(
        op(f"_foreach_{name}", 2 if name == "mul_" else 1, device_ms * passes / 21)
        for name, passes in times.items()
    )


SHORT = {"phase": "optimizer", "launches": 80, "device_ns": 14 * MS}


def test_lists_of_tensors_are_mentioned_if_a_fused_kernel_gains_enough() -> None:
    step = mean_step(host_path_share=0.0, unprofiled_ns=(10.0 * MS, 10.0 * MS))
    advice = assert_bounded(found(*lists(1.4), step=step, name="AdamW", phase=SHORT), step)
    assert advice.certainty == "likely"
    # 7 of 21 passes stay, or one operator of 8.
    assert advice.saving.device_ns == pytest.approx((0.85 * 1.4 * MS * 14 / 21, 1.4 * MS * 7 / 8))
    assert found(*lists(0.14), step=step, name="AdamW", phase=SHORT) is None
    assert found(*lists(1.4), step=step, name="NAdam", phase=SHORT) is None


def test_a_large_optimizer_on_lists_is_left_to_another_rule() -> None:
    step = mean_step(host_path_share=0.5, unprofiled_ns=(10.0 * MS, 10.0 * MS), busy_ns=9.9 * MS)
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


# ---------------------------------------------------------------- loops of the program's own


def own(name: str, per_step: float, late_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    """An operator that the program calls outside of any optimizer."""
    return op(name, per_step, 0.1, phase="forward", starved_ns=round(10 * late_ms * MS), **more)


def node(name: str, per_step: float) -> dict[str, Any]:
    """A node of autograd's graph."""
    return {"name": name, "phase": "backward", "within": "evaluate", "per_step": per_step}


WEIGHTS = node("torch::autograd::AccumulateGrad", 50)
MEAN = (own("mul", 50, 0.2), own("mul_", 50, 0.2), own("add_", 50, 0.2))
FUSED = op("_fused_adamw_", 1, 0.5)
NO_STEP = {"phase": "other", "starved_ns": 8 * MS, "launches": 500}


def looped(*ops: dict[str, Any], **told: Any) -> Advice | None:
    """A program with 50 weights, some Python, and no optimizer but what is given."""
    return found(WEIGHTS, *ops, phase=NO_STEP, **told)


def test_an_optimizer_that_is_written_out() -> None:
    advice = assert_bounded(looped(*MEAN), mean_step())
    # Late: 0.6 ms, and 0.6 of the 0.8 ms of Python at the most. By time all is 5/4, by launches 150 of 150.
    # A look-up of every tensor costs two of three calls, less than that Python: the calls are the least.
    assert advice.saving.starved_ns == pytest.approx((0.75 * MS, 2.2 * MS))
    # A pass takes the median of 0.1/(50*2) twice and 0.1/(50*3), 0.001; five of 50 tensors 0.25 of 0.3 ms.
    assert advice.saving.device_ns == pytest.approx((0.85 * 0.05 * MS, 0.3 * MS * 2 / 3))
    assert advice.evidence["tensors_per_step"] == 50
    assert advice.evidence["operators_per_tensor"] == 3
    assert advice.certainty == "likely"
    assert "torch.optim.SGD(parameters, lr=lr, fused=True)" in advice.fix
    assert [(place.line, place.note) for place in advice.locations] == [(10, "150 operators a step")]
    adam = assert_bounded(looped(*MEAN, own("addcdiv_", 50)), mean_step())
    assert "torch.optim.AdamW" in adam.fix


@pytest.mark.parametrize(
    "ops, typed",
    [
        (MEAN, "torch._foreach_lerp_"),
        ((own("lerp_", 50, 0.2),), "get_ema_multi_avg_fn"),
        ((own("copy_", 50, 0.2),), "torch._foreach_copy_(tensors"),
        ((own("clamp_", 50, 0.2),), "clip_grad_value_"),
        ((own("mul_", 50, 0.2),), "torch._foreach_mul_(tensors"),
    ],
)
def test_a_loop_beside_an_optimizer(ops: tuple[dict[str, Any], ...], typed: str) -> None:
    advice = assert_bounded(looped(FUSED, *ops), mean_step())
    assert typed in advice.fix
    assert "outside of the optimizer" in advice.because


def test_the_larger_of_an_optimizer_and_a_loop_is_told() -> None:
    both = (WEIGHTS, own("lerp_", 50, 0.05), *SGD)
    assert assert_bounded(found(*both), mean_step()).evidence["kind"] == "per tensor"
    both = (WEIGHTS, own("lerp_", 50, 3.0), *SGD)
    assert (
        assert_bounded(found(*both, phase={**STEPS, "starved_ns": 0, "launches": 10}), mean_step()).evidence[
            "kind"
        ]
        == "loop"
    )


def test_how_often_a_loop_meets_a_tensor() -> None:
    def told(per_step: float, *more: dict[str, Any], **steps: Any) -> bool:
        return looped(own("mul_", per_step, 0.2), *more, **steps) is not None

    assert [told(calls) for calls in (20, 40, 46, 50, 54, 75, 100, 250)] == [
        False, False, True, True, True, False, True, False,
    ]  # fmt: skip
    # Ten batch norms have two running means each, which a mean of the whole state takes along.
    assert told(70, node("CudnnBatchNormBackward0", 10))
    # Gradients are accumulated over two passes, or two networks have a pass each.
    assert told(25, passes=2)
    assert told(50, passes=2)
    assert not told(50, passes=0)


def test_what_autograd_knows_is_no_loop_over_weights() -> None:
    added = own("add_", 50, 0.2)
    assert looped(added) is not None
    assert looped(added, node("AddBackward0", 50)) is None
    # These nodes are of another operator, which is not in place.
    assert looped(added, own("add", 50), node("AddBackward0", 50)) is not None
    # Or of what another operator calls.
    inside = own("mul", 50, within="aten::dropout")
    assert looped(own("mul_", 50, 0.2), inside, node("MulBackward0", 50)) is not None
    # Batch norms count their batches.
    assert looped(added, own("batch_norm", 50)) is None


def test_other_operators_are_no_loop_over_weights() -> None:
    assert looped(own("mul", 50, 0.2)) is None  # changes nothing
    assert looped(own("relu_", 50, 0.2)) is None
    assert looped(own("mul_", 50, 0.2, within="aten::dropout_")) is None
    assert looped(own("mul_", 50, 0.2, launches=0)) is None
    assert found(own("mul_", 50, 0.2), phase=NO_STEP) is None  # nobody knows how many weights there are
    few = node("torch::autograd::AccumulateGrad", 6)
    assert found(few, own("mul_", 6, 0.5), phase=NO_STEP) is None


def test_copies_of_what_ddp_broadcasts_are_no_loop_over_weights() -> None:
    copies, sent = own("copy_", 50, 0.2), {"name": "c10d::broadcast_", "phase": "forward", "per_step": 2.0}
    assert looped(copies) is not None
    assert looped(copies, sent) is None
    assert looped(copies, {**sent, "phase": "other"}) is not None
    assert looped(copies, own("mul_", 50, 0.2), sent) is not None


def test_a_loop_over_rows_of_a_tensor_may_be_as_long() -> None:
    assert looped(own("copy_", 50, 0.2), own("select", 100, launches=0)) is None
    assert looped(own("copy_", 50, 0.2), own("select", 8, launches=0)) is not None


def test_functions_are_told_apart() -> None:
    elsewhere = own("mul_", 20, 0.1, user_frame="model.py(3): forward")
    advice = assert_bounded(looped(own("mul_", 50, 0.2), elsewhere), mean_step())
    assert [place.line for place in advice.locations] == [10]
    assert advice.evidence["loop_starved_ns"] == pytest.approx(0.2 * MS)


def test_a_group_for_each_tensor() -> None:
    step = mean_step(busy_ns=1.0 * MS, starved_ns=9.0 * MS, host_path_share=1.0)
    fused = op("_fused_adamw_", 200, 0.3)
    advice = assert_bounded(found(fused, step=step, name="AdamW", stretch_ns=20 * MS), step)
    assert advice.title == "The optimizer has a group for nearly every tensor"
    assert "named_parameters" in advice.fix
    gain = step.gain(advice.saving)  # 2 of 10 ms, once instead of 200 times
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0995, 0.199))
    assert found(op("_fused_adamw_", 26, 0.3), step=step, name="AdamW", stretch_ns=20 * MS) is None
