"""Reports on real profiles: none crashes, promises stay within the step, and known faults are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.findings import test_library
from tests.samples import FEW, SAMPLES, reported, tiered

from stepscope.findings.report import Report

DATA = Path(__file__).parent.parent / "data"
SMALL = sorted(
    path.relative_to(DATA).as_posix() for path in DATA.rglob("*.json.gz") if path.parent.name != "faults"
)

QUICK = [
    name
    for name in SMALL
    if not name.startswith("library/") or Path(name).name.partition(".")[0] in test_library.IN_EVERY_RUN
]
"""Every run looks at those of which it asks more."""

FOUND = {
    "h200_slow_item": ("host-bound", {"scalar-reads", "launch-bound"}),
    "h200_rl_churn": ("host-bound", {"scalar-reads", "scatter-heavy", "allocation-churn", "launch-bound"}),
    "h200_prefetch_serial": ("input-bound", {"pageable-copies", "exposed-copies"}),
    "h200_tutorial_baseline": ("host-bound", {"device-unfilled", "tf32-matmuls", "unfused-attention"}),
    "h200_resnet50": ("host-bound", {"launch-bound", "tf32-matmuls", "per-tensor-optimizer"}),
    "h200_ddp_gloo_rank0": ("communication-bound", {"gloo-backend"}),
}
"""What is wrong with programs that were written to be slow."""


def assert_sound(report: Report) -> None:
    assert not [one for one in report.not_run if "crashed" in one.reason]
    low, high = report.overview.unprofiled_step_ns
    assert 0 <= low <= high <= report.overview.step_ns + 1
    for finding in report.findings:
        gain = finding.gain
        assert 0 <= gain.low_ns <= gain.high_ns <= high + 1, finding.id
        assert 0 <= gain.low_share <= gain.high_share <= 1, finding.id
    parts = sum(report.overview.parts.values())
    assert abs(parts - report.overview.step_ns) <= 8
    phases = report.overview.phases
    assert not phases or sum(phase.share for phase in phases) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SMALL, QUICK))
def test_every_recording_gets_a_sound_report(name: str) -> None:
    assert_sound(reported(DATA / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_sample_gets_a_sound_report(name: str, sample: Callable[[str], Path]) -> None:
    assert_sound(reported(sample(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_known_faults_are_found(name: str, sample: Callable[[str], Path]) -> None:
    report = reported(sample(f"{name}.pt.trace.json.gz"))
    word, ids = FOUND[name]
    assert report.verdict.word == word
    assert ids <= {finding.id for finding in report.findings}


@pytest.mark.slow
def test_the_scalar_read_is_found_with_its_line(sample: Callable[[str], Path]) -> None:
    report = reported(sample("h200_slow_item.pt.trace.json.gz"))
    (finding,) = (one for one in report.findings if one.id == "scalar-reads")
    first = finding.advice.locations[0]
    assert (first.file, first.line, first.function) == ("capture.py", 85, "forward")
    # The program is launch-bound: without the reads the host would be late all the same.
    assert finding.gain.low_share < 0.10
