"""Steps played again under a change, and without the profiler, against what was measured of real programs."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
from tests.analyses.test_critical_path import LAUNCH, opened
from tests.drawing import Drawing
from tests.faults import MENDED_BY, PROGRAMS, recording
from tests.samples import open_shared

from stepscope.analyses.changed_steps import ChangedStep, changed_steps
from stepscope.analyses.step_limits import step_limits
from stepscope.simulation.changes import Change
from stepscope.simulation.recording_cost import VAGUE
from stepscope.simulation.simulator import Simulator

Sides = list[tuple[str, str]]
MANY = ("some", "all")
SIDES = [
    (name, side)
    for name, program in PROGRAMS.items()
    for side in program["sides"]
    if name != "recompilations"  # its steps are compilations, each another one
]
GRAPHED = [
    (name, side)
    for name, side in SIDES
    if PROGRAMS[name]["sides"][side].get("graph", {}).get("graphed_step_ns")
]
SOME = SIDES[::4]
"""For every run; all of them for an exhaustive one."""


@cache
def played(name: str, side: str, by: str) -> ChangedStep:
    (row,) = changed_steps(open_shared(recording(name, side)), by=by)  # type: ignore[arg-type]  # one of its changes
    return row


@pytest.mark.parametrize("name", MENDED_BY)
def test_a_fault_played_without_it_is_as_long_as_its_mended_twin(name: str) -> None:
    row, sides = played(name, "faulty", MENDED_BY[name]), PROGRAMS[name]["sides"]
    gain = 1 - sides["mended"]["unprofiled_step_ns"] / sides["faulty"]["unprofiled_step_ns"]
    assert 0.8 * row.gain_low_share - 0.02 <= gain <= 1.2 * row.gain_high_share + 0.02


@pytest.mark.slow
@pytest.mark.parametrize("sides", [SOME, pytest.param(SIDES, marks=pytest.mark.exhaustive)], ids=MANY)
def test_a_step_without_the_profiler_is_foretold_within_a_fifth(sides: Sides) -> None:
    """Of eight programs in ten at the least; half of them much better."""
    errors = []
    for name, side in sides:
        row = played(name, side, "graph")
        middle = (row.unprofiled_low_ns + row.unprofiled_high_ns) / 2
        errors.append(abs(math.log(middle / PROGRAMS[name]["sides"][side]["unprofiled_step_ns"])))
    errors.sort()
    assert errors[int(0.8 * len(errors))] <= math.log(1.2)
    assert errors[len(errors) // 2] <= math.log(1.08)


def test_there_are_enough_real_graphs() -> None:
    assert len(GRAPHED) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("sides", [SOME, pytest.param(SIDES, marks=pytest.mark.exhaustive)], ids=MANY)
def test_a_step_played_as_a_graph_is_as_long_as_the_real_graph(sides: Sides) -> None:
    errors = []
    for name, side in GRAPHED:
        if (name, side) not in sides:
            continue
        true = PROGRAMS[name]["sides"][side]["graph"]["graphed_step_ns"]
        errors.append(abs(math.log(played(name, side, "graph").changed_high_ns / true)))
    errors.sort()
    assert errors[int(0.9 * len(errors))] <= math.log(1.2)
    assert errors[len(errors) // 2] <= math.log(1.1)


# ---------------------------------------------------------------- drawn by hand

VAGUE_MEAN = sum(VAGUE) / 2
"""What an event costs where nothing tells how fast the host is."""


def test_what_recording_an_event_costs_is_spared_where_it_was_recorded(tmp_path: Path) -> None:
    # An operator costs 3.2 µs and a call 3: of 10 before the launch 3.2 go, of its 4 all but the half.
    drawing = Drawing().mark(1, 0, 100).op("aten::add", 20, 60).launch(LAUNCH, 30, 4, corr=1)
    drawing.kernel("k", 40, 10, corr=1)
    simulator = Simulator(opened(drawing, tmp_path))
    assert simulator.run(Change(spared=1.0)).dur_ns == [100_000 - 10_000 - 3_200 - 3_000]


def test_no_more_is_spared_than_seven_eighths_of_what_the_host_did(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 80)
    drawing.launch(LAUNCH, 40, 8, corr=1).kernel("k", 41, 4, corr=1)
    simulator = Simulator(opened(drawing, tmp_path))
    assert simulator.run(Change(spared=1000.0)).dur_ns == [80_000 - 35_000 - 7_000]


def test_calls_one_after_the_other_cost_less_to_record(tmp_path: Path) -> None:
    """Seven tenths of a millisecond that is full of them, however many they are."""

    def spared(calls: int) -> int:
        drawing = Drawing().mark(1, 0, 1_000)
        for number in range(calls):
            drawing.frame("train.py(1): f", 1_000 * number / calls, 900 / calls)
        drawing.launch(LAUNCH, 999, 0.5, corr=1).kernel("k", 999.6, 0.3, corr=1)
        (length,) = Simulator(opened(drawing, tmp_path)).run(Change(spared=VAGUE_MEAN)).dur_ns
        return 1_000_000 - length

    others = spared(0)
    assert spared(100) - others == pytest.approx(100 * 1_000 * VAGUE_MEAN, rel=0.02)
    assert spared(2_000) - others == pytest.approx(700_000, rel=0.02)
    assert spared(4_000) - others == pytest.approx(700_000, rel=0.02)


def test_a_cold_first_step_is_left_out(tmp_path: Path) -> None:
    drawing = Drawing()
    for number, (start, length) in enumerate(((0, 900), (1000, 100), (1100, 110))):
        drawing.mark(number, start, length).launch(LAUNCH, start + 10, 2, corr=number + 1)
        drawing.kernel("k", start + 20, 10, corr=number + 1)
    (first, *_) = step_limits(opened(drawing, tmp_path))
    assert (first.steps, first.measured_ns, first.simulated_ns) == (2, 105_000, 105_000)


def test_of_a_long_trace_some_steps_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 400
    monkeypatch.setattr("stepscope.simulation.simulator.MOST_WORK", most)
    drawing, steps = Drawing(), 8
    each = most // 4
    for number in range(steps):
        start = number * 10 * each
        drawing.mark(number, start, 10 * each)
        for at in range(each):
            drawing.launch(LAUNCH, start + 10 * at, 2, corr=number * each + at + 1)
            drawing.kernel("k", start + 10 * at + 4, 3, corr=number * each + at + 1)
    simulator = Simulator(opened(drawing, tmp_path))
    assert simulator.steps["step"].to_pylist() == [1, 2, 3, 4]
    assert simulator.run(Change()).dur_ns == simulator.recorded_ns


def test_limits_of_a_host_and_of_a_device(tmp_path: Path) -> None:
    # The host takes 100 by itself, the device 40 of them after the launch at 10 and 15 of latency.
    drawing = Drawing().mark(1, 0, 100).launch(LAUNCH, 10, 2, corr=1).kernel("k", 25, 40, corr=1)
    rows = {(row.faster, row.times): row for row in step_limits(opened(drawing, tmp_path))}
    assert rows["all work", 1.0].simulated_ns == rows["device", 0.0].simulated_ns == 100_000
    assert rows["host", 0.0].simulated_ns == 53_000
    assert all(row.unprofiled_low_ns <= row.unprofiled_high_ns <= row.simulated_ns for row in rows.values())


def test_limits_of_input_communication_and_waits(tmp_path: Path) -> None:
    # Loading takes 30, then a copy 20, a kernel 30 and a collective 40; a call waits for all of it.
    drawing = Drawing().mark(1, 0, 160).annotation("enumerate(DataLoader)#_Iter.__next__", 0, 30)
    drawing.launch("cudaMemcpyAsync", 30, 1, corr=1).memcpy("Memcpy HtoD (Pinned -> Device)", 31, 20, corr=1)
    drawing.launch(LAUNCH, 32, 1, corr=2).kernel("k", 51, 30, corr=2)
    drawing.launch(LAUNCH, 34, 1, corr=3).kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 81, 40, corr=3)
    drawing.launch("cudaDeviceSynchronize", 36, 85, corr=4)
    lengths = {
        row.faster: row.simulated_ns for row in step_limits(opened(drawing, tmp_path)) if not row.times
    }
    assert lengths["communication"] == 120_000
    assert lengths["device"] == 130_000
    assert lengths["input"] == 111_000, "the kernel then waits for its launch"
    assert lengths["waits"] < 160_000


def test_a_profile_without_steps_has_no_limits(tmp_path: Path) -> None:
    trace = opened(Drawing(), tmp_path)
    assert list(step_limits(trace)) == []
    assert list(changed_steps(trace)) == []
