from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.rules.unfused_loss import unfused_loss

NODE = "autograd::engine::evaluate_function: "


def op(name: str, device_ms: float, phase: str = "forward", **more: Any) -> dict[str, Any]:
    """An operator that is called once a step."""
    given = {
        "name": name, "phase": phase, "calls": 10, "per_step": 1.0, "launches": 10,
        "device_ns": round(10 * device_ms * MS),
    }  # fmt: skip
    return given | more


LOSS = (
    op("aten::cross_entropy_loss", 0.5),
    op("aten::log_softmax", 0.4, within="aten::cross_entropy_loss"),
    op("aten::_log_softmax", 0.4, within="aten::log_softmax"),
    op(NODE + "NllLossBackward0", 0.2, "backward"),
    op(NODE + "LogSoftmaxBackward0", 0.7, "backward"),
    op("aten::_log_softmax_backward_data", 0.6, "backward", within="LogSoftmaxBackward0"),
)


def found(*ops: dict[str, Any], **thresholds: Any) -> Advice | None:
    return unfused_loss(busy_pace(), drawn(StepOp, *ops), drawn(Copy), **thresholds)


def test_a_loss_in_pieces() -> None:
    advice = assert_bounded(found(*LOSS), busy_pace())
    # 0.5 + 0.2 + 0.7 in all; 0.4 + 0.6 are log_softmax and its backward.
    assert advice.saving.device_ns == (0.4 * MS, 0.8 * MS)
    assert advice.evidence["loss_device_ns"] == 1.4 * MS
    assert advice.claims == {Claim(Time.DEVICE, Part.LOSS)}


def test_casts_of_the_logits_go_and_half_the_bytes_will_do() -> None:
    casts = op("aten::to", 0.3), op(NODE + "ToCopyBackward0", 0.3, "backward")
    advice = assert_bounded(found(*LOSS, *casts), busy_pace())
    assert advice.saving.device_ns == (0.85 * MS, 1.7 * MS)
    assert advice.evidence["cast_to_fp32"] is True


def test_casts_of_less_are_not_of_the_logits() -> None:
    advice = assert_bounded(found(*LOSS, op("aten::to", 0.05)), busy_pace())
    assert advice.evidence["loss_device_ns"] == 1.4 * MS
    assert advice.evidence["cast_to_fp32"] is False


def test_autocast_casts_inside_of_the_loss() -> None:
    inside = op("aten::to", 0.1, within="aten::log_softmax")
    advice = assert_bounded(found(*LOSS, inside), busy_pace())
    assert advice.evidence["loss_device_ns"] == 1.4 * MS
    assert advice.saving.device_ns == (0.4 * MS, 1.1 * MS)


def test_other_operators_of_the_same_function_belong_to_it_if_they_are_as_large() -> None:
    frame = {"user_frame": "train.py(7): loss_of"}
    framed = [one | frame for one in LOSS]
    more = (
        op("aten::mean", 0.3, **frame),
        op("aten::add", 0.01, **frame),
        op("aten::linear", 2.0, **frame),
        op("aten::mean", 0.3, user_frame="train.py(1): other"),
    )
    advice = assert_bounded(found(*framed, *more), busy_pace())
    assert advice.evidence["loss_device_ns"] == 1.7 * MS
    assert [place.function for place in advice.locations] == ["loss_of"]


def test_a_loss_that_is_written_out_is_known_by_its_size() -> None:
    written = (
        op("aten::kl_div", 0.5),
        op("aten::div", 0.2),
        op(NODE + "MulBackward0", 0.2, "backward"),
        op("aten::exp", 0.01),  # of less
        op("aten::gelu", 0.4),  # of no loss
        op("aten::add", 2.0, per_step=8.0, calls=80, launches=80),  # of layers
    )
    advice = assert_bounded(found(*LOSS, *written), busy_pace())
    assert advice.evidence["loss_device_ns"] == 2.3 * MS
    # Log_softmax and its backward stay, and a quarter of what size tells.
    assert advice.saving.device_ns == (1.2 * MS, 1.7 * MS)


def test_scores_of_attention_may_be_as_large() -> None:
    scores = op("aten::bmm", 0.4, within="aten::matmul"), op("aten::div", 0.2)
    advice = assert_bounded(found(*LOSS, *scores), busy_pace())
    assert advice.evidence["loss_device_ns"] == 1.4 * MS
    small = op("aten::bmm", 0.04, within="aten::matmul"), op("aten::div", 0.2)
    advice = assert_bounded(found(*LOSS, *small), busy_pace())
    assert advice.evidence["loss_device_ns"] == pytest.approx(1.6 * MS)


def test_where_functions_are_known_size_does_not_tell() -> None:
    framed = [one | {"user_frame": "train.py(7): loss_of"} for one in LOSS]
    advice = assert_bounded(found(*framed, op("aten::div", 0.2, user_frame="m.py(1): f")), busy_pace())
    assert advice.evidence["loss_device_ns"] == 1.4 * MS


def test_it_is_silent_where_the_loss_is_small_or_absent() -> None:
    assert found() is None
    assert found(op("aten::linear", 5.0)) is None
    few = [one | {"device_ns": one["device_ns"] // 50} for one in LOSS]
    assert found(*few, least_share=0.0) is None
    assert found(*LOSS, least_share=0.2) is None


def test_moving_logits_to_the_host_is_no_cast() -> None:
    ops = drawn(StepOp, *LOSS, op("aten::to", 0.3))
    moved = drawn(Copy, {"direction": "DtoH", "total_ns": 3 * MS})
    plain, without = (unfused_loss(busy_pace(), ops, copies) for copies in (drawn(Copy), moved))
    assert plain is not None
    assert without is not None
    assert (plain.evidence["cast_to_fp32"], without.evidence["cast_to_fp32"]) == (True, False)


DENSE = (
    op("aten::log_softmax", 0.4),
    op("aten::_log_softmax", 0.4, within="aten::log_softmax"),
    op(NODE + "LogSoftmaxBackward0", 0.6, "backward"),
    op("aten::_log_softmax_backward_data", 0.6, "backward", within="LogSoftmaxBackward0"),
    op("aten::one_hot", 0.22),
    op("aten::zeros", 0.2, within="aten::one_hot"),
    op("aten::mul", 1.0, per_step=20.0, calls=200, launches=200),  # some of them are of layers
)


def test_one_hot_targets_as_large_as_the_logits() -> None:
    advice = assert_bounded(found(*DENSE), busy_pace())
    # 4.5 fills of 0.2 ms go at least. At most 9, and all but the backward of log_softmax.
    assert advice.saving.device_ns == pytest.approx((0.9 * MS, 2.2 * MS))
    assert advice.evidence["one_hot_fill_ns"] == 0.2 * MS
    assert "one-hot rows" in advice.because
    assert "label_smoothing" in advice.fix


def test_operators_of_dense_targets_that_are_known_count_once() -> None:
    known = op("aten::sum", 0.4)
    advice = assert_bounded(found(*DENSE, known), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.8 * MS, 2.2 * MS))


def test_without_a_backward_pass_dense_targets_take_less() -> None:
    forward = [one for one in DENSE if one["phase"] != "backward"]
    advice = assert_bounded(found(*forward), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.7 * MS, 1.9 * MS))


def test_one_hot_rows_of_something_else() -> None:
    for changed in (
        {"device_ns": MS // 2},  # an eighth of the time of log_softmax
        {"device_ns": 20 * MS},
        {"calls": 40, "per_step": 4.0},
    ):
        ops = [one | changed if one["name"] == "aten::zeros" else one for one in DENSE]
        advice = found(*ops)
        assert advice is None or not advice.evidence["one_hot_fill_ns"]
