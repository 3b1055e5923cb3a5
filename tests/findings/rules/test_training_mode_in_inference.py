from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn
from tests.findings.test_library import LIBRARY
from tests.samples import reported

from stepscope.analyses.op_kernels import OpKernel
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.training_mode_in_inference import training_mode_in_inference

DROP = {"name": "aten::native_dropout", "within": "aten::dropout", "per_step": 8.0, "device_ns": 10 * MS}
AROUND = {"name": "aten::dropout", "per_step": 8.0, "device_ns": 10 * MS}
NORM = {"name": "aten::native_batch_norm", "per_step": 8.0, "device_ns": 20 * MS}
STATISTICS = {"op": "aten::native_batch_norm", "kernel": "batch_norm_collect_statistics_kernel<float>"}
INFERENCE = drawn(StepClass, {"backward_passes": 0})


def test_dropout_goes_and_statistics_go_in_part() -> None:
    ops = drawn(StepOp, AROUND, DROP, NORM)
    found = training_mode_in_inference(busy_pace(), INFERENCE, ops, drawn(OpKernel, STATISTICS))
    advice = assert_bounded(found, busy_pace())
    gain = busy_pace().gain(advice.saving)
    assert gain.low_share == pytest.approx(0.16, rel=0.1)
    assert gain.high_share == pytest.approx(0.22, rel=0.1)
    assert "model.eval()" in advice.fix


def test_known_statistics_are_as_they_should_be() -> None:
    quick = drawn(OpKernel, {"op": "aten::native_batch_norm", "kernel": "batch_norm_transform_input_kernel"})
    assert training_mode_in_inference(busy_pace(), INFERENCE, drawn(StepOp, NORM), quick) is None
    # In evaluation mode dropout is called, and hands its input on.
    idle = drawn(StepOp, AROUND | {"device_ns": 0})
    assert training_mode_in_inference(busy_pace(), INFERENCE, idle, drawn(OpKernel)) is None


def test_training_drops_on_purpose() -> None:
    training = drawn(StepClass, {"backward_passes": 1, "optimizer": True})
    found = training_mode_in_inference(busy_pace(), training, drawn(StepOp, AROUND, DROP), drawn(OpKernel))
    assert found is None


@pytest.mark.slow
def test_a_scorer_without_eval() -> None:
    """A real program: 5 % of its step are dropout."""
    report = reported(LIBRARY / "settings_risk_scorer.faulty.light.pt.trace.json.gz")
    assert report.findings[0].id == "training-mode-in-inference"
    assert report.findings[0].gain.low_share < 0.07
