from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.annotations import Annotation
from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.optimizer_share import optimizer_share


def op(name: str, per_step: float, device_ms: float) -> dict[str, Any]:
    calls = round(10 * per_step)
    return {
        "name": f"aten::{name}", "phase": "optimizer", "calls": calls, "per_step": per_step,
        "device_ns": round(10 * device_ms * MS), "launches": calls,
    }  # fmt: skip


def found(
    *ops: dict[str, Any],
    step: MeanStep,
    device_ms: float = 2.0,
    stretch_ms: float = 2.0,
    name: str = "AdamW",
    passes: int = 1,
    others: tuple[dict[str, Any], ...] = (),
    **thresholds: Any,
) -> Advice | None:
    return optimizer_share(
        step,
        drawn(StarvingPhase, {"phase": "optimizer", "launches": 80, "device_ns": round(10 * device_ms * MS)}),
        drawn(Phase, {"phase": "optimizer", "stretch_ns": round(10 * stretch_ms * MS)}, {"phase": "forward"}),
        drawn(StepClass, {"steps": 10, "backward_passes": passes}),
        drawn(StepOp, *ops),
        drawn(Annotation, *others, {"name": f"Optimizer.step#{name}.step", "device_ns": 20 * MS}),
        **thresholds,
    )


LISTS = (op("_foreach_lerp_", 1, 0.9), op("_foreach_mul_", 1, 0.6), op("_foreach_addcdiv_", 1, 1.2))
FUSED = op("_fused_adamw_", 1, 2.0)


def test_lists_that_a_fused_kernel_could_replace() -> None:
    step = busy_pace()
    advice = assert_bounded(found(*LISTS, step=step, device_ms=2.7), step)
    # A pass takes 0.3 ms of 9; a fused kernel makes 7.
    assert advice.saving.device_ns == pytest.approx((0.85 * 0.6 * MS, 2.7 * MS * 2 / 3))
    assert advice.certainty == "likely"
    assert advice.evidence["optimizer_share"] == pytest.approx(0.98 * 0.27 + 0.02 * 0.2)
    assert "fused=True" in advice.fix


def test_a_fused_kernel_gains_from_fewer_updates_at_the_most() -> None:
    step = busy_pace()
    advice = assert_bounded(found(FUSED, step=step), step)
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.certainty == "possible"
    assert "fused=True" not in advice.fix
    assert "AdamW8bit" in advice.fix
    assert "AdamW8bit" not in assert_bounded(found(FUSED, step=step, name="SGD"), step).fix


def test_of_several_optimizers_the_most_expensive_is_meant() -> None:
    step = busy_pace()
    small, other = op("_fused_adamw_", 1, 0.1), {"name": "Optimizer.step#AdamW.step", "device_ns": MS}
    advice = assert_bounded(
        found(small, *LISTS, step=step, device_ms=2.8, name="Adagrad", others=(other,)), step
    )
    assert advice.because.startswith("Adagrad takes")
    assert "torch.optim.Adagrad(parameters, lr=lr, fused=True)" in advice.fix
    # One optimizer calls lists of tensors beside its kernel to clip gradients, however long that takes.
    clips = assert_bounded(found(small, *LISTS, step=step, device_ms=2.8), step)
    assert "fused=True" not in clips.fix


def test_what_counts_is_the_side_that_sets_the_pace() -> None:
    assert found(FUSED, step=busy_pace(host_path_share=0.0), device_ms=1.0, stretch_ms=5.0) is None
    hosted = mean_step(host_path_share=1.0)
    assert found(FUSED, step=hosted, device_ms=2.0, stretch_ms=1.0) is None
    assert found(FUSED, step=hosted, device_ms=2.0, stretch_ms=5.0) is not None


def test_less_is_allowed_where_gradients_are_accumulated() -> None:
    step = busy_pace()
    assert found(FUSED, step=step, device_ms=1.2, stretch_ms=1.2) is None
    assert found(FUSED, step=step, device_ms=1.2, stretch_ms=1.2, passes=4) is not None
    assert found(FUSED, step=step, device_ms=1.2, stretch_ms=1.2, passes=4, accumulating_share=0.2) is None
    assert found(FUSED, step=step, device_ms=1.2, stretch_ms=1.2, finding_share=0.1) is not None


def test_it_is_silent_without_an_optimizer_and_where_tensors_are_updated_one_by_one() -> None:
    step = busy_pace()
    assert found(step=step) is None
    assert found(op("mul_", 100, 1.0), op("add_", 100, 1.0), step=step) is None


def in_backward(name: str, within: str, device_ms: float) -> dict[str, Any]:
    return {**op(name, 1, device_ms), "phase": "backward", "within": within}


NODE = "autograd::engine::evaluate_function: EmbeddingBackward0"
DENSE = "aten::embedding_dense_backward"


def of_table(zeros_ms: float, looked_up_ms: float) -> tuple[dict[str, Any], ...]:
    """A fused AdamW of 2 ms, and a table whose gradient is made in 0.1 ms beside the zeros."""
    return (
        FUSED,
        {**op("embedding", 1, looked_up_ms), "phase": "forward"},
        in_backward("embedding_dense_backward", "EmbeddingBackward0", zeros_ms + 0.1),
        in_backward("zeros", DENSE, zeros_ms),
        in_backward("zeros", "aten::other", 5.0),
    )


def test_a_table_of_which_few_rows_are_looked_up() -> None:
    step = busy_pace()
    advice = assert_bounded(found(*of_table(0.2, 0.01), step=step), step)
    # 7 passes of 0.2 ms are 70 % of the optimizer. They and the zeros go, less 16 look-ups.
    assert advice.saving.device_ns == pytest.approx((1.44 * MS, 2.3 * MS))
    more_rows = assert_bounded(found(*of_table(0.2, 0.049), step=step), step)
    assert more_rows.saving.device_ns[0] == pytest.approx((1.6 - 16 * 0.049) * MS)
    assert advice.evidence["table_share"] == pytest.approx(0.7)
    assert advice.certainty == "possible"
    assert "SparseAdam" in advice.fix
    assert "a few rows" in advice.title


def test_an_optimizer_on_lists_goes_through_a_table_more_often() -> None:
    step = busy_pace()
    table = of_table(0.08, 0.001)[1:]
    advice = assert_bounded(found(*LISTS, *table, step=step, device_ms=2.7), step)
    assert "a few rows" in advice.title
    assert advice.evidence["table_share"] == pytest.approx(20 * 0.08 / 2.7)
    assert "a few rows" not in assert_bounded(found(FUSED, *table, step=step, device_ms=2.7), step).title


def test_a_table_is_not_the_reason() -> None:
    step = busy_pace()
    half = (0.0, 1.0 * MS)
    added = in_backward("add_", NODE, 0.1)
    for ops in (
        of_table(0.1, 0.001),  # most of what is updated is something else
        of_table(0.2, 0.1),  # many rows are looked up
        (*of_table(0.2, 0.01), added),  # it is a matrix of the last layer, too
    ):
        assert assert_bounded(found(*ops, step=step), step).saving.device_ns == half
    # three passes of SGD are less than half
    assert assert_bounded(found(*of_table(0.2, 0.01), step=step, name="SGD"), step).saving.device_ns == half
    advice = assert_bounded(found(*of_table(0.4, 0.01), step=step, name="SGD"), step)
    assert "torch.optim.SGD(table" in advice.fix


def looked_up_again(added_ms: float, times: int = 2) -> tuple[dict[str, Any], ...]:
    """The gradients of `times` look-ups, filled in 0.2 ms each, and sums of gradients."""
    fused, look_up, dense, zeros, _ = of_table(0.2 * times, 0.02)
    sums = in_backward("add_", NODE, added_ms) | {"per_step": float(times - 1)}
    return fused, look_up, dense | {"per_step": float(times)}, zeros | {"per_step": float(times)}, sums


def test_a_table_that_is_looked_up_several_times() -> None:
    step = busy_pace()
    for times in (2, 3):
        added_ms = 0.6 * (times - 1)
        ops = looked_up_again(added_ms, times)
        advice = assert_bounded(found(*ops, step=step), step)
        # 7 passes of 0.2 ms; all zeros and sums go, less 16 look-ups.
        filled_ms = 0.2 * times + added_ms
        assert advice.evidence["table_share"] == pytest.approx(0.7)
        assert advice.saving.device_ns == pytest.approx(
            ((1.4 + filled_ms - 0.32) * MS, (2.1 + filled_ms) * MS)
        )


def test_a_tied_table_beside_a_small_one() -> None:
    step = busy_pace()
    fused, look_up, dense, zeros, sums = looked_up_again(1.2)
    for ops in (
        (fused, look_up, dense, zeros, sums),  # 0.4 ms of zeros are nearly all of one table, which is tied
        (fused, look_up, dense, zeros, sums | {"per_step": 2.0}),  # encoder, decoder and the last layer
    ):
        assert "a few rows" not in assert_bounded(found(*ops, step=step), step).title
