from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.recorded_graphs import RecordedGraph
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.autograd_in_inference import autograd_in_inference

OPS = drawn(
    StepOp, {"name": "aten::linear", "per_step": 80.0, "host_ns": 70 * MS, "user_frame": "a.py(3): f"}
)
GRAPH = drawn(RecordedGraph, {"ops": 100, "nodes": 90, "host_ns": 7 * MS})
INFERENCE = drawn(StepClass, {"backward_passes": 0})


def test_nodes_cost_the_host_time() -> None:
    advice = assert_bounded(autograd_in_inference(mean_step(), INFERENCE, OPS, GRAPH), mean_step())
    assert "90 nodes" in advice.because
    assert "inference_mode" in advice.fix
    gain = mean_step().gain(advice.saving)
    assert 0 <= gain.low_share < gain.high_share <= 0.35


def test_a_part_of_the_operators_costs_a_part() -> None:
    some = drawn(RecordedGraph, {"ops": 100, "nodes": 45, "host_ns": 7 * MS})
    whole = autograd_in_inference(mean_step(), INFERENCE, OPS, GRAPH)
    half = autograd_in_inference(mean_step(), INFERENCE, OPS, some)
    assert whole
    assert half
    shares = [mean_step().gain(advice.saving).high_share for advice in (whole, half)]
    assert shares[0] == pytest.approx(2 * shares[1], rel=0.05)


def test_it_is_silent_where_it_costs_nothing() -> None:
    training = drawn(StepClass, {"backward_passes": 1, "optimizer": True})
    assert autograd_in_inference(mean_step(), training, OPS, GRAPH) is None
    assert autograd_in_inference(mean_step(), INFERENCE, OPS, drawn(RecordedGraph)) is None
    assert autograd_in_inference(busy_pace(), INFERENCE, OPS, GRAPH) is None
