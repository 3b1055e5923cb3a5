from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.beside_training import BesideTraining
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


def found(**changed: Any) -> Advice | None:
    return work_beside_training(STEP, drawn(BesideTraining, METRIC | changed))


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
    assert work_beside_training(STEP, drawn(BesideTraining)) is None


def test_it_is_silent_where_the_gpu_sets_the_pace() -> None:
    step = mean_step(busy_ns=10.0 * MS, starved_ns=0.0, latency_ns=0.0, host_path_share=0.5)
    assert work_beside_training(step, drawn(BesideTraining, METRIC)) is None


def test_an_update_that_follows_may_depend_on_it() -> None:
    advice = assert_bounded(found(before_update=True), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0, 1.3 * 0.4), abs=0.01)
    assert advice.certainty == "possible"
    assert "An optimizer follows" in advice.because
    assert "clip_grad_norm_" in advice.fix
    assert "clip_grad_norm_" not in assert_bounded(found(), STEP).fix
