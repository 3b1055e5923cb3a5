"""Programs with a planted fault: it is found, among the first, and healthy programs get no alarm."""

from __future__ import annotations

import pytest
from tests.faults import IN_EVERY_RUN, PROGRAMS, recording
from tests.samples import reported, tiered

PLANTED = [name for name, program in PROGRAMS.items() if program["kind"] == "fault"]
IN_A_LOOP = ("implicit_syncs_masks", "unseen_clip_by_item")
"""Each repetition of a loop waits for the GPU: the loop is among the first two, and the waits are third."""
HEALTHY = [name for name, program in PROGRAMS.items() if program["kind"] == "healthy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(PLANTED, IN_EVERY_RUN | {*IN_A_LOOP}))
def test_a_planted_fault_is_first_or_second(name: str) -> None:
    report = reported(recording(name, "faulty"))
    found = [finding.id for finding in report.findings]
    if name in IN_A_LOOP:
        assert "repeated-calls" in found[:2]
    assert PROGRAMS[name]["finding"] in found[: 3 if name in IN_A_LOOP else 2]
    assert not [one for one in report.not_run if "crashed" in one.reason]


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered(HEALTHY, IN_EVERY_RUN))
def test_a_healthy_program_gets_no_alarm(name: str) -> None:
    report = reported(recording(name, next(iter(PROGRAMS[name]["sides"]))))
    assert [finding.id for finding in report.findings if finding.severity != "low"] == []
    assert report.verdict.word in ("healthy", "device-bound", "compute-bound", "memory-bandwidth-bound")


def test_there_are_enough_of_them() -> None:
    assert len(PLANTED) >= 20
    assert len(HEALTHY) >= 5
    for name, program in PROGRAMS.items():
        for side in program["sides"]:
            assert recording(name, side).stat().st_size < 1 << 20
