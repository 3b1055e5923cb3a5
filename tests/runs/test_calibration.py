"""What recording cost, from the step that was measured without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import PROGRAMS, recording
from tests.findings.test_mean_step import drawn_pace, limits

import stepscope
from stepscope.analyses.step_limits import step_limits
from stepscope.analyses.trust import trust
from stepscope.findings import Saving
from stepscope.findings.build import build_report
from stepscope.simulation.calibration import REACH, calibrated
from stepscope.simulation.recording_cost import Moment
from stepscope.store.measured import MeasuredStep
from stepscope.store.trace import Trace

ESTIMATED = Moment(0.75, 1.25, "An estimate.")


def falling(spared: float) -> float:
    """What is left of a step that the host sets the pace of: recording costs 40 % of it, if 1 is right."""
    return 1 - 0.4 * spared


def test_a_measured_step_narrows_the_estimate() -> None:
    found = calibrated(ESTIMATED, falling, (0.56, 0.56), 0.0)
    assert ESTIMATED.least <= found.least < found.most <= ESTIMATED.most
    assert falling(found.least) == pytest.approx(0.56 * 1.02, abs=0.01), "no longer than measured"
    assert falling(found.most) == pytest.approx(0.56 * 0.9, abs=0.01), "a device may be 10 % slower by then"


def test_a_device_that_sets_the_pace_hides_the_cost() -> None:
    assert calibrated(ESTIMATED, lambda _: 1.0, (0.98, 1.05), 0.0).least == ESTIMATED.least
    assert calibrated(ESTIMATED, lambda _: 1.0, (0.98, 1.05), 0.0).most == ESTIMATED.most


def test_recording_may_cost_more_than_estimated() -> None:
    found = calibrated(ESTIMATED, falling, (0.40, 0.40), 0.0)
    assert ESTIMATED.most < found.least == found.most <= REACH * ESTIMATED.most
    assert falling(found.least) == pytest.approx(0.40 * 1.02, abs=0.01)


def test_a_step_that_nothing_explains_takes_the_end_of_the_estimate() -> None:
    assert calibrated(ESTIMATED, falling, (1.3, 1.3), 0.0).least == ESTIMATED.least
    below = calibrated(ESTIMATED, lambda _: 1.0, (0.5, 0.5), 0.0)
    assert (below.least, below.most) == (ESTIMATED.most, ESTIMATED.most)


@given(cost=st.floats(0, 1), low=st.floats(0.01, 2), wide=st.floats(0, 0.1), error=st.floats(0, 0.3))
def test_it_is_a_range_within_reach(cost: float, low: float, wide: float, error: float) -> None:
    found = calibrated(ESTIMATED, lambda spared: 1 - cost * min(spared, 1), (low, low + wide), error)
    assert 0 <= found.least <= found.most <= REACH * ESTIMATED.most


def test_gains_are_parts_of_the_measured_step() -> None:
    """Whatever the simulated steps come to, a gain is that part of the measured one."""
    estimated = drawn_pace(played=limits(0.8, 0.7, 0.6, 0.5))
    measured = dataclasses.replace(estimated, measured_ns=(20e6, 21e6))
    saving = Saving(starved_ns=(1e6, 2e6), device_ns=(0.0, 1e6), waited_ns=(1e5, 2e5))
    plain, gain = estimated.gain(saving), measured.gain(saving)
    assert (gain.low_share, gain.high_share) == (plain.low_share, plain.high_share)
    assert (gain.low_ns, gain.high_ns) == (round(gain.low_share * 20e6), round(gain.high_share * 21e6))
    assert measured.left(saving) == pytest.approx(((1 - gain.high_share) * 20e6, (1 - gain.low_share) * 21e6))


@given(
    busy=st.floats(0, 1e7),
    short=st.floats(1e5, 1e7),
    saved=st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)).map(sorted),
)
def test_no_gain_is_more_than_the_measured_step(busy: float, short: float, saved: list[float]) -> None:
    """Not even where the recorded kernels do not fit into it."""
    step = dataclasses.replace(
        drawn_pace(played=limits(0.8, 0.7, 0.6, 0.5)), busy_ns=busy, measured_ns=(short, 1.01 * short)
    )
    gain = step.gain(Saving(device_ns=(saved[0], saved[1]), waited_ns=(saved[0], saved[1])))
    assert 0 <= gain.low_ns <= gain.high_ns <= 1.01 * short + 1
    assert step.left(Saving(device_ns=(saved[0], saved[1])))[0] >= 0


def a_trace(name: str, factor: float = 1.0, folder: Path | None = None) -> Trace:
    """A recording with its measured step, or with another one."""
    trace = stepscope.open(recording(name, "faulty"))
    mean = round(factor * PROGRAMS[name]["sides"]["faulty"]["unprofiled_step_ns"])
    trace.measured = MeasuredStep(mean, mean, round(0.996 * mean), round(1.004 * mean), 40)
    return trace


@pytest.mark.slow
def test_the_simulated_step_is_as_long_as_the_measured_one() -> None:
    trace = a_trace("scalar_reads_layers")
    assert trace.measured is not None
    plain = next(iter(step_limits(trace)))
    recorded = plain.measured_ns / plain.simulated_ns
    assert plain.unprofiled_low_ns * recorded >= 0.88 * trace.measured.mean_ns
    assert plain.unprofiled_high_ns * recorded <= 1.03 * trace.measured.mean_ns
    alone = next(iter(step_limits(stepscope.open(recording("scalar_reads_layers", "faulty")))))
    assert plain.unprofiled_high_ns - plain.unprofiled_low_ns < (
        alone.unprofiled_high_ns - alone.unprofiled_low_ns
    )
    assert "measured step differs" not in [one.what for one in trust(trace)]


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.2, 3.0])
def test_a_measured_step_that_does_not_fit_is_said(factor: float) -> None:
    """As of a program whose steps differ: it is no reason to fail."""
    report = build_report(a_trace("scalar_reads_layers", factor))
    (doubt,) = [one for one in report.trust if one.what == "measured step differs"]
    assert doubt.effect_ns
    assert all(0 <= one.gain.low_share <= one.gain.high_share <= 1 for one in report.findings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scalar_reads_layers", "launch_bound_training", "driver_allocations"])
def test_gains_are_narrower_and_as_true(name: str) -> None:
    sides = PROGRAMS[name]["sides"]
    true = 1 - sides["mended"]["unprofiled_step_ns"] / sides["faulty"]["unprofiled_step_ns"]
    alone = build_report(stepscope.open(recording(name, "faulty")))
    timed = build_report(a_trace(name))
    before, after = (
        next(one.gain for one in report.findings if one.id == PROGRAMS[name]["finding"])
        for report in (alone, timed)
    )
    assert after.high_share - after.low_share < before.high_share - before.low_share
    assert 0.8 * after.low_share <= true <= 1.2 * after.high_share
