"""What sets the pace of other people's programs: the word, the step and the caveat of each reading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import open_shared, reported

from stepscope.analyses.step_limits import step_limits
from stepscope.findings import Category
from stepscope.findings.report import Word

Sample = Callable[[str], Path]

DEVICE: tuple[Word, ...] = ("device-bound", "memory-bandwidth-bound", "compute-bound")

WORDS: dict[str, tuple[Word, ...]] = {
    "sglang_decode_mi300": ("device-bound", "memory-bandwidth-bound"),
    "vllm_mixed_mi300": DEVICE,
    "xdit_sd35_mi300": ("host-bound",),
    "owlv2_h100": ("host-bound", "input-bound"),
    "timesformer_h100": ("host-bound", "input-bound"),
    "dlrm_graphs_a100": ("unknown",),
    "torchrec_a100": ("communication-bound",),
    "two_v100": ("host-bound",),
    "resnet_ddp_mi300": ("communication-bound",),
    "mtia_inference": ("unknown",),
    "h200_ddp_one_rank": ("compute-bound",),
    "h200_compiled_graphs": ("host-bound",),
    "h200_saving_every_tenth": ("host-bound",),
}
"""Profiles that an engineer read, and the words that agree with the reading."""


def trace_of(name: str, sample: Sample) -> Path:
    return sample(f"verdicts/{name}.json.gz")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_the_word_agrees_with_an_engineer(name: str, sample: Sample) -> None:
    assert reported(trace_of(name, sample)).verdict.word in WORDS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_a_change_that_is_suggested_gains(name: str, sample: Sample) -> None:
    """A device is not made faster where the host sets the pace, nor the other way round."""
    path = trace_of(name, sample)
    plain, *rows = step_limits(open_shared(path))
    limits = {row.faster: row for row in rows}
    commands = [step.command for step in reported(path).next_steps if "whatif" in step.command]
    for command in commands:
        faster = "device" if "--kernels" in command else "waits" if "--no-sync" in command else "host"
        assert limits[faster].unprofiled_low_ns < plain.unprofiled_low_ns


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,step_ms,queued", [("sglang_decode_mi300", 10.4, "463 ms"), ("vllm_mixed_mi300", 156, "151 ms")]
)
def test_a_step_starts_when_its_work_can(name: str, step_ms: float, queued: str, sample: Sample) -> None:
    report = reported(trace_of(name, sample))
    assert report.overview.step_ns / 1e6 == pytest.approx(step_ms, rel=0.02)
    assert (report.overview.starved_share or 0) < 0.05
    (caveat,) = (one for one in report.trust if one.what == "unrecorded device work")
    assert queued in caveat.explanation
    assert not [one.id for one in report.findings if one.category is Category.SYNC], "nobody knows its cost"


@pytest.mark.slow
def test_steps_that_are_not_reproduced_promise_nothing(sample: Sample) -> None:
    report = reported(trace_of("dlrm_graphs_a100", sample))
    assert "off by 51 %" in report.verdict.sentence
    assert not report.verdict.promise
    assert "unexplained length of steps" in [one.what for one in report.trust]
    low, high = report.overview.unprofiled_step_ns
    assert low == high == report.overview.steady_step_ns < report.overview.step_ns, "the first step is cold"


@pytest.mark.slow
def test_waits_gain_no_more_than_a_simulation_without_them(sample: Sample) -> None:
    report = reported(trace_of("xdit_sd35_mi300", sample))
    for one in report.findings:
        assert one.category is not Category.SYNC or one.gain.high_share < 0.05


@pytest.mark.slow
def test_full_precision_is_first_and_not_healthy(sample: Sample) -> None:
    report = reported(trace_of("h200_ddp_one_rank", sample))
    assert report.findings[0].id == "full-precision-matmuls"
    assert report.findings[0].gain.high_share > 0.25


@pytest.mark.slow
def test_what_is_left_holds_the_kernels_that_stay(sample: Sample) -> None:
    """Of 551 ms of kernels at most 474 are attention."""
    promise = reported(trace_of("owlv2_h100", sample)).verdict.promise
    assert "to 0" not in promise
