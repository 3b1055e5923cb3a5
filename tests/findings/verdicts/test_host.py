"""Traces of other people, as a field engineer reads them: host time outside of operators, and loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults import PROGRAMS, recording
from tests.samples import reported

from stepscope.findings import Finding
from stepscope.findings.report import Report

Sample = Callable[[str], Path]
LOOPS = {
    "unseen_gru_cells": ("A loop of 48 GRU cells could be one call", "nn.GRU("),
    "implicit_syncs_experts": ("A loop over 8 experts or relations could be one call", "_grouped_mm"),
    "implicit_syncs_masks": ("A loop over 8 groups could be one call", "index_add_"),
}
"""Programs that have a loop, what it is called, and what the fix names."""


def read(sample: Sample, name: str) -> Report:
    return reported(sample(f"verdicts/{name}.json.gz"))


def found(report: Report, name: str) -> Finding:
    return next(finding for finding in report.findings if finding.id == name)


@pytest.mark.slow
def test_preparing_images_is_the_step(sample: Sample) -> None:
    report = read(sample, "timesformer_h100")
    first = report.findings[0]
    assert first.id == "python-between-ops"
    assert "217 ms of a step (56.8 %) for `preprocess()`" in first.advice.because
    assert "`normalize()` 106 ms" in first.advice.because
    places = [str(place) for place in first.advice.locations]
    assert places[0].endswith("model.py:40 run_on_input")
    assert places[1] == "transformers/pipelines/video_classification.py:129 preprocess"
    assert "use_fast=True" in first.advice.fix
    assert 0.4 < first.gain.low_share < first.gain.high_share < 0.6


@pytest.mark.slow
def test_loading_that_is_one_function_of_a_library(sample: Sample) -> None:
    first = read(sample, "owlv2_h100").findings[0]
    assert first.id == "dataloader-waits"
    assert "529 ms for `zoom_shift()` of scipy" in first.advice.because
    places = [str(place) for place in first.advice.locations]
    assert places[1:] == [
        "transformers/pipelines/zero_shot_object_detection.py:164 preprocess",
        "scipy/ndimage/_interpolation.py:739 zoom",
    ]
    assert "pipe(inputs, num_workers=" in first.advice.fix


@pytest.mark.slow
def test_saving_in_one_step_is_named(sample: Sample) -> None:
    report = read(sample, "h200_saving_every_tenth")
    first = report.findings[0]
    assert (first.id, first.severity) == ("step-variance", "high")
    assert first.advice.title == "Some steps are long: they call torch.save()"
    assert "in 1 of 4 steps, in step 5 for 312 ms" in first.advice.because
    assert str(first.advice.locations[0]) == "faults.py:285 after"
    # 286 ms of waiting in 4 steps: without it a step of 104 ms takes some 30 ms.
    assert first.gain.high_ns == pytest.approx(71e6, rel=0.15)
    assert not [one for one in report.findings if "gc.disable" in one.advice.fix]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["h200_ddp_one_rank", "h200_compiled_graphs", "two_v100", "resnet_ddp_mi300", "xdit_sd35_mi300"]
)
def test_steps_that_wait_for_no_function_name_none(name: str, sample: Sample) -> None:
    assert not [
        one for one in read(sample, name).findings if one.id in ("python-between-ops", "step-variance")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_named(name: str) -> None:
    title, fix = LOOPS[name]
    finding = found(reported(recording(name, "faulty")), "repeated-calls")
    assert finding.advice.title == title
    assert fix in finding.advice.fix
    sides = PROGRAMS[name]["sides"]
    gain = 1 - sides["mended"]["unprofiled_step_ns"] / sides["faulty"]["unprofiled_step_ns"]
    assert finding.gain.low_share * 0.9 <= gain <= finding.gain.high_share * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["launch_bound_training", "launch_bound_inference", "unseen_pinn"])
def test_layers_are_no_loop(name: str) -> None:
    assert "repeated-calls" not in [one.id for one in reported(recording(name, "faulty")).findings]


@pytest.mark.slow
def test_a_full_recording_names_the_function_and_the_loop() -> None:
    report = reported(recording("python_between_ops", "faulty", "full"))
    finding = found(report, "python-between-ops")
    assert finding.advice.title == "The GPU waits for keep()"
    sides = PROGRAMS["python_between_ops"]["sides"]
    gain = 1 - sides["mended"]["unprofiled_step_ns"] / sides["faulty"]["unprofiled_step_ns"]
    assert finding.gain.low_share < gain < finding.gain.high_share
    experts = found(reported(recording("implicit_syncs_experts", "faulty", "full")), "repeated-calls")
    assert "2 × 8 times a step, with shapes that differ" in experts.advice.because
    assert str(experts.advice.locations[0]) == "benchmarks/faults/host.py:166 layer"
