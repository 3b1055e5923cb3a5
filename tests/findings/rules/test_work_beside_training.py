from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.before_training import BeforeTraining
from stepscope.analyses.beside_training import BesideTraining
from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.work_beside_training import work_beside_training

# The host sets the pace of a step of 10 ms; the GPU works for a tenth of it.
STEP = mean_step(busy_ns=1.0 * MS, starved_ns=9.0 * MS, latency_ns=0.0, host_path_share=1.0)
METRIC = {
    "user_frame": "train.py(7): step",
    "stretches": 10,
    "ops": 4_000,
    "reads": 0,
    "most_often": "aten::eq, aten::sum",
    "host_ns": 40 * MS,
    "device_ns": 2 * MS,
}


NOTHING_BEFORE = drawn(StepOp), drawn(BeforeTraining), drawn(Copy)


def found(**changed: Any) -> Advice | None:
    return work_beside_training(STEP, drawn(BesideTraining, METRIC | changed), *NOTHING_BEFORE)


def test_its_part_of_the_step_goes() -> None:
    advice = assert_bounded(found(), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.4, 1.3 * 0.4), abs=0.01)
    assert "400 operators a step" in advice.because
    assert "aten::eq, aten::sum" in advice.because
    assert "read" not in advice.because
    assert [(place.file, place.line) for place in advice.locations] == [("train.py", 7)]


def test_reads_are_said() -> None:
    assert "and 90 of them read a value" in assert_bounded(found(reads=900), STEP).because


def test_it_is_silent_where_it_is_little_or_seldom() -> None:
    assert found(host_ns=5 * MS) is None
    assert found(stretches=2) is None
    assert work_beside_training(STEP, drawn(BesideTraining), *NOTHING_BEFORE) is None


def test_it_is_silent_where_the_gpu_sets_the_pace() -> None:
    step = mean_step(busy_ns=10.0 * MS, starved_ns=0.0, latency_ns=0.0, host_path_share=0.5)
    assert work_beside_training(step, drawn(BesideTraining, METRIC), *NOTHING_BEFORE) is None


def test_an_update_that_follows_may_depend_on_it() -> None:
    advice = assert_bounded(found(before_update=True), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0, 1.3 * 0.4), abs=0.01)
    assert advice.certainty == "possible"
    assert "An optimizer follows" in advice.because
    assert "clip_grad_norm_" in advice.fix
    assert "clip_grad_norm_" not in assert_bounded(found(), STEP).fix


def test_a_network_as_large_as_the_one_that_is_trained() -> None:
    def validating(device_ms: int) -> Advice | None:
        network = METRIC | {"network": True, "device_ns": device_ms * MS, "most_often": "aten::linear"}
        # The forward pass takes 2 ms of a step, with the network.
        forward = drawn(StepOp, {"name": "aten::linear", "phase": "forward", "device_ns": 20 * MS})
        tables = drawn(BesideTraining, network), forward, drawn(BeforeTraining), drawn(Copy)
        return work_beside_training(BUSY, *tables)

    advice = assert_bounded(validating(10), BUSY)
    assert "A network runs among them, after the weights are updated" in advice.because
    assert "validate(model, batches)" in advice.fix
    assert "log(norms(model))" not in advice.fix
    assert validating(5) is None, "so small, it may act for the next step"


BUSY = busy_pace(busy_ns=9.0 * MS)
SPREAD = {
    "user_frame": "train.py(9): gathered",
    "steps": 10,
    "ops": 300,
    "longest": "aten::index_select, aten::scatter_add_",
    "host_ns": 5 * MS,
    "device_ns": 70 * MS,
}
FORWARD = {"name": "aten::index_select", "phase": "forward", "device_ns": 70 * MS}


def repeated(copied: int = 0, **changed: Any) -> Advice | None:
    tables = drawn(StepOp, FORWARD), drawn(BeforeTraining, SPREAD | changed)
    copies = drawn(Copy, {"direction": "HtoD", "bytes": 10 * copied}, {"direction": "DtoH", "bytes": 9**9})
    return work_beside_training(BUSY, drawn(BesideTraining), *tables, copies)


def test_what_comes_first_and_takes_most_may_be_the_same_each_time() -> None:
    advice = assert_bounded(repeated(copied=8), BUSY)
    gain = BUSY.gain(advice.saving)
    assert gain.low_share == 0
    assert 0.5 < gain.high_share <= 0.7  # the host sets the pace then
    assert advice.certainty == "possible"
    assert "30 operators a step" in advice.because
    assert "once, before the training" in advice.fix
    assert [(place.file, place.line) for place in advice.locations] == [("train.py", 9)]


def test_it_is_silent_where_a_batch_is_prepared() -> None:
    assert repeated(copied=2000) is None  # the indices of a batch
    assert repeated(device_ns=40 * MS) is None  # a normalisation takes less than the training
    assert repeated(steps=3) is None


def test_what_comes_first_is_not_looked_for_where_the_forward_pass_is_short() -> None:
    tables = drawn(StepOp, FORWARD | {"device_ns": 40 * MS}), drawn(BeforeTraining, SPREAD)
    assert work_beside_training(BUSY, drawn(BesideTraining), *tables, drawn(Copy)) is None
