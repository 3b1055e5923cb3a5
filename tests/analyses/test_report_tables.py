"""The tables that the report is built on: parts of found steps, late phases, operators, profiler's cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.analyses.test_code import analysed, opened, training_step
from tests.drawing import Drawing
from tests.samples import open_shared

from stepscope.simulation.critical_path import ON_DEVICE
from stepscope.simulation.recording_cost import COSTS_NS, DOUBT, LEAST_CALLS, OPERATORS_SHARE, VAGUE

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other")


def test_parts_of_marked_steps_are_those_of_steps(tmp_path: Path) -> None:
    trace = opened(training_step(), tmp_path)
    (step,), (same,) = analysed("steps", trace), analysed("steps", trace, by="any")
    assert [getattr(step, f"{part}_ns") for part in PARTS] == [getattr(same, f"{part}_ns") for part in PARTS]
    assert (same.step, same.dur_ns) == (5, 200_000)


def test_steps_that_nobody_marked_are_divided_too(tmp_path: Path) -> None:
    drawing = Drawing()
    for step in range(3):
        at = step * 100
        drawing.annotation("Optimizer.step#SGD.step", at + 60, 20).op("aten::mm", at, 10)
        drawing.launch("cudaLaunchKernel", at + 2, 4, corr=step + 1).kernel(
            "gemm", at + 20, 30, corr=step + 1
        )
    table = analysed("steps", opened(drawing, tmp_path), by="any")
    assert len(table) == 3
    for row in table:
        assert sum(getattr(row, f"{part}_ns") for part in PARTS) == row.dur_ns
        assert row.kernel_ns == 30_000
    assert table.notes == ("No step marks: steps were found by the steps of the optimizer.",)


def test_late_time_by_phase(tmp_path: Path) -> None:
    # The device is idle from 35 until the launch at 52: 15 in frames of no phase, 2 in aten::relu. And from
    # 65 until 85: 15 with nothing open on autograd's thread, 5 in its node. And before its first work, until
    # the launch at 22: 10 while data is loaded, 2 in aten::addmm, and 10 in frames. After its last work, from
    # 173 on, the optimizer is open until 180, and frames are until the step ends at 200.
    found = {
        row.phase: (row.starved_ns, row.launches, row.device_ns)
        for row in analysed("starving_phases", opened(training_step(), tmp_path))
    }
    assert found == {
        "other": (30_000 + 10_000 + 20_000, 0, 0),
        "dataloader": (10_000, 0, 0),
        "backward": (5_000, 2, 80_000),
        "forward": (2_000 + 2_000, 2, 10_000),
        "optimizer": (7_000, 1, 3_000),
    }


def test_operators_of_a_step(tmp_path: Path) -> None:
    rows = analysed("step_ops", opened(training_step(), tmp_path))
    found = {
        row.name: (
            row.phase,
            row.user_frame,
            row.calls,
            row.host_ns,
            row.starved_ns,
            row.device_ns,
            row.launches,
        )
        for row in rows
    }
    node = "autograd::engine::evaluate_function: "
    inner, outer = "model.py(8): forward", "train.py(3): main"
    assert found == {
        "aten::addmm": ("forward", inner, 1, 10_000, 2_000, 5_000, 1),
        "aten::relu": ("forward", inner, 1, 10_000, 2_000, 5_000, 1),
        f"{node}ReluBackward0": ("backward", inner, 1, 20_000, 5_000, 40_000, 1),
        f"{node}AddmmBackward0": ("backward", inner, 1, 20_000, 0, 40_000, 1),
        "aten::add_": ("optimizer", outer, 1, 10_000, 0, 3_000, 1),
    }
    assert {row.within for row in rows} == {None}


def test_an_operator_counts_with_what_it_called_and_outside_of_steps_not_at_all(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 100).op("aten::linear", 10, 30).op("aten::addmm", 15, 20)
    drawing.launch("cudaLaunchKernel", 20, 5, corr=1).kernel("gemm", 30, 8, corr=1).memory(16, 512)
    drawing.op("aten::linear", 200, 30).launch("cudaLaunchKernel", 205, 5, corr=2).kernel(
        "gemm", 240, 8, corr=2
    )
    rows = {row.name: row for row in analysed("step_ops", opened(drawing, tmp_path))}
    assert set(rows) == {"aten::linear", "aten::addmm"}
    outer, inner = rows["aten::linear"], rows["aten::addmm"]
    assert (outer.calls, outer.host_ns, outer.device_ns, outer.within) == (1, 30_000, 8_000, None)
    assert (inner.calls, inner.host_ns, inner.device_ns, inner.within) == (1, 20_000, 8_000, "aten::linear")


def test_what_recording_cost_is_counted_by_event(tmp_path: Path) -> None:
    found = {row.kind: row for row in analysed("profiler_costs", opened(training_step(), tmp_path))}
    events = {kind: row.events for kind, row in found.items()}
    assert events == {"operators": 5, "runtime calls": 5, "python frames": 5, "ranges": 5}
    for kind, row in found.items():
        low, high = (round(5 * part * COSTS_NS[kind]) for part in VAGUE)
        assert (row.least_ns, row.most_ns, row.per_step) == (low, high, 5.0)


def test_a_slow_host_pays_more_for_each_event(tmp_path: Path) -> None:
    """It takes 3.4 µs for a transposition, twice what the measured host takes."""
    drawing = Drawing().mark(0, 0, 1000)
    for at in range(LEAST_CALLS):
        drawing.op("aten::t", 10 + 10 * at, 3.4)
    table = analysed("profiler_costs", opened(drawing, tmp_path))
    (row,) = (row for row in table if row.kind == "operators")
    cost = LEAST_CALLS * COSTS_NS["operators"] * 2
    assert (row.least_ns, row.most_ns) == (round(DOUBT[0] * cost), round(DOUBT[1] * cost))
    assert table.notes == ("An event costs this host 2.00 times what it costs the one measured.",)


def test_of_many_operators_one_after_the_other_each_costs_less(tmp_path: Path) -> None:
    """A thousand calls of 1 µs: recording takes half of that, and not three times as long as all of it."""
    drawing = Drawing().mark(0, 0, 1000)
    for at in range(1000):
        drawing.op("aten::t" if at < LEAST_CALLS else "aten::select", at, 0.9)
    (row,) = (row for row in analysed("profiler_costs", opened(drawing, tmp_path)) if row.kind == "operators")
    assert row.events == 1000
    least, most = (round(part * OPERATORS_SHARE * 1_000_000) for part in DOUBT)
    assert (row.least_ns, row.most_ns) == pytest.approx((least, most), rel=0.01)


@pytest.mark.parametrize("name", ["checkpointed", "waits", "transformer_accumulation"])
def test_late_time_of_phases_adds_up(name: str) -> None:
    """What phases, lines and idle gaps say of the same time."""
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    late = sum(row.starved_ns for row in analysed("starving_phases", trace))
    idle = sum(row.idle_ns for row in analysed("idle_gaps", trace) if row.side == "host")
    assert late == sum(row.idle_ns for row in analysed("lines", trace))
    assert 0.99 * idle < late <= idle


@pytest.mark.parametrize("name", ["two_streams", "nccl", "waits", "cuda_graph"])
def test_sides_of_the_path_are_those_of_the_critical_path(name: str) -> None:
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    whole, device, communication = Counter[int](), Counter[int](), Counter[int]()
    for part in analysed("critical_path", trace):
        whole[part.step] += part.path_ns
        device[part.step] += part.path_ns if part.kind in ON_DEVICE else 0
        communication[part.step] += part.path_ns if part.kind == "communication" else 0
    sides = list(analysed("critical_path_sides", trace))
    assert len(sides) == len(whole)
    for row in sides:
        assert row.path_ns == whole[row.step]
        assert (row.device_ns, row.communication_ns) == (device[row.step], communication[row.step])
        assert row.host_ns + row.device_ns == row.path_ns
