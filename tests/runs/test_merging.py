"""One report of a light and a full pass of a real program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.faults import PROGRAMS
from tests.runs.folders import PROGRAM, run_of_fault
from tests.trying import some

import stepscope
from stepscope.findings import Finding
from stepscope.findings.build import build_report
from stepscope.findings.report import Report
from stepscope.opening import open_pass
from stepscope.runs import PassName
from stepscope.runs.choosing import choose_pass, choose_rank
from stepscope.runs.reading import read_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("answers_kept")]

BOTH = [PROGRAM, "dataloader_waits", "implicit_syncs_experts", "implicit_syncs_masks", "python_between_ops"]
"""Programs with a recording of either kind."""


class Reports:
    """A run, its report, and the reports of its passes alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.both = stepscope.report(folder)
        self.light = self._of("light")
        self.full = self._of("full")

    def _of(self, name: PassName) -> Report:
        chosen = choose_rank(read_run(self.folder))
        return build_report(open_pass(chosen, choose_pass(chosen, name)))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(run_of_fault(tmp_path_factory.mktemp("merging") / "run"))


def found(report: Report, name: str) -> Finding | None:
    return next((one for one in report.findings if one.id == name), None)


def test_the_step_is_the_measured_one(reports: Reports) -> None:
    mean = PROGRAMS[PROGRAM]["sides"]["faulty"]["unprofiled_step_ns"]
    low, high = reports.both.overview.unprofiled_step_ns
    assert low < mean < high < 1.02 * low
    assert reports.both.overview.rates["steps"] == pytest.approx(1e9 / mean, rel=0.001)


def test_times_are_light_and_places_full(reports: Reports) -> None:
    both, light, full = (found(one, "scalar-reads") for one in (reports.both, reports.light, reports.full))
    assert both is not None
    assert light is not None
    assert full is not None
    assert both.gain == light.gain
    assert {key: both.advice.evidence[key] for key in light.advice.evidence} == light.advice.evidence
    assert both.advice.locations == full.advice.locations
    assert light.advice.locations == ()
    assert str(both.advice.locations[0]) == "benchmarks/faults/host.py:44 note"


def test_no_line_asks_for_what_the_full_pass_has(reports: Reports) -> None:
    asked = re.compile("with_stack|record_shapes|profile_memory")
    assert any(asked.search(one.advice.because) for one in reports.light.findings), (
        "it is a test of something"
    )
    said = [one.advice.because for one in reports.both.findings]
    said += [step.text + step.command for step in reports.both.next_steps]
    assert [one for one in said if asked.search(one)] == []


def test_overview_verdict_and_phases_are_light(reports: Reports) -> None:
    both, light, full = reports.both.overview, reports.light.overview, reports.full.overview
    assert (both.step_ns, both.parts, both.phases) == (light.step_ns, light.parts, light.phases)
    assert both.starved_share == light.starved_share != full.starved_share
    assert reports.both.verdict.word == reports.light.verdict.word


def test_what_a_light_pass_cannot_know_is_full(reports: Reports) -> None:
    both, light, full = reports.both, reports.light, reports.full
    assert light.overview.peak_memory_bytes is None
    assert both.overview.peak_memory_bytes == full.overview.peak_memory_bytes
    assert light.overview.mfu_share is None
    assert both.overview.mfu_share == full.overview.mfu_share, "of the measured step, in either"
    assert both.facts.stacks
    assert both.facts.shapes
    assert both.facts.memory
    states = {one.name: one.state for one in both.checklist}
    assert states["memory"] != "not known"
    room = found(both, "memory-room")
    assert room is not None
    assert room.advice.because.endswith("(From the full pass.)")
    assert {one.id for one in light.not_run} > {one.id for one in both.not_run}


def test_it_says_what_comes_from_where(reports: Reports) -> None:
    told = reports.both.passes
    assert told is not None
    assert (told.run, told.rank, told.ranks) == ("run", 0, (0,))
    assert (told.times.name, told.times.steps) == ("light", 3)
    assert (told.places.name, told.places.steps) == ("full", 1)
    assert told.measured is not None
    assert reports.both.facts.source == "run"


def test_doubts_have_the_name_of_their_pass(reports: Reports) -> None:
    light, full = ({one.what for one in report.trust} for report in (reports.light, reports.full))
    told = {one.what for one in reports.both.trust}
    assert "missing record" in light
    assert "missing record" not in told, "the full pass has it"
    for what in (light & full) - {"missing record", "profiler options"}:
        assert what in told
    for what in (full - light) - {"missing record", "profiler options"}:
        assert f"{what} (full pass)" in told


@pytest.mark.parametrize("name", some(BOTH, 2))
def test_every_program_with_two_passes(tmp_path: Path, name: str) -> None:
    """The light pass decides what is wrong; the full one adds where, and what it alone can see."""
    reports = Reports(run_of_fault(tmp_path / "run", name))
    light = {one.id: one for one in reports.light.findings}
    gone = {one.id for one in reports.both.replaced}
    assert set(light) - gone <= {one.id for one in reports.both.findings}
    for one in reports.both.findings:
        if one.id in light:
            assert one.gain == light[one.id].gain
        full = found(reports.full, one.id)
        if full and full.advice.locations:
            assert one.advice.locations == full.advice.locations
        elif full and one.id not in light:
            assert one.gain.high_share == pytest.approx(full.gain.high_share, abs=0.03)
    expected = found(reports.both, PROGRAMS[name]["finding"])
    assert expected is not None
    assert expected.advice.locations or name == "dataloader_waits"


@pytest.mark.parametrize("only", ["light", "full"])
def test_one_pass_alone(tmp_path: Path, only: PassName) -> None:
    report = stepscope.report(run_of_fault(tmp_path / "run", passes=[only]))
    assert report.passes is not None
    assert report.passes.times == report.passes.places
    assert report.passes.times.name == only
    low, high = report.overview.unprofiled_step_ns
    assert high < 1.02 * low


def test_a_run_without_a_full_pass_says_how_to_record_one(tmp_path: Path) -> None:
    report = stepscope.report(run_of_fault(tmp_path / "run", passes=["light"]))
    assert "stepscope run train.py --epochs 3" in [step.command for step in report.next_steps]
    assert not [step for step in report.next_steps if "torch.profiler" in step.command]


def test_without_times_the_step_is_an_estimate(tmp_path: Path) -> None:
    report = stepscope.report(run_of_fault(tmp_path / "run", passes=["light"], times=False))
    assert report.passes is not None
    assert report.passes.measured is None
    low, high = report.overview.unprofiled_step_ns
    assert high > 1.05 * low
