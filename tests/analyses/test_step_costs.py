"""The division of the steps that comparisons are made of: it sums to the steps, whatever the profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.analyses.test_code import analysed, opened
from tests.drawing import Drawing
from tests.samples import open_shared

from stepscope.analyses.step_costs import StepCost, step_costs
from stepscope.analyses.steps import steps

DATA = Path(__file__).parent.parent / "data"
REAL = sorted([*DATA.glob("*.json.gz"), *DATA.glob("recordings/*.json.gz")])


def told(rows: Any) -> dict[tuple[str, str, str | None], tuple[int, int]]:
    return {(row.part, row.kind, row.name): (row.calls, row.cost_ns) for row in rows}


def test_work_and_waiting(tmp_path: Path) -> None:
    # A gemm from 10 to 30; beside it from 20 a copy to 40, and from 35 a collective to 60. Then the host
    # reads a scalar from 50 to 70, which drains the queue, and the next launch is made at 75.
    drawing = (
        Drawing()
        .mark(1, 0, 100)
        .op("aten::mm", 2, 4)
        .launch("cudaLaunchKernel", 3, 2, corr=1)
        .kernel("gemm", 10, 20, corr=1)
        .launch("cudaMemcpyAsync", 7, 2, corr=2)
        .memcpy("Memcpy HtoD (Pinned -> Device)", 20, 20, corr=2)
        .launch("cudaLaunchKernel", 10, 2, corr=3)
        .kernel("ncclDevKernel_AllReduce_Sum", 35, 25, corr=3)
        .launch("cudaStreamSynchronize", 50, 20)
        .op("aten::add", 72, 10)
        .launch("cudaLaunchKernel", 75, 3, corr=4)
        .kernel("vectorized_elementwise_kernel", 80, 20, corr=4)
    )
    rows = analysed("step_costs", opened(drawing, tmp_path))
    assert told(rows) == {
        ("kernels", "matmul", "gemm"): (1, 20_000),
        ("kernels", "elementwise", "vectorized_elementwise_kernel"): (1, 20_000),
        ("copies", "copy", "Memcpy HtoD (Pinned -> Device)"): (1, 10_000),
        ("collectives", "communication", "ncclDevKernel_AllReduce_Sum"): (1, 20_000),
        ("syncs", "synchronising call", "cudaStreamSynchronize"): (1, 10_000),
        ("syncs", "host op", "cudaStreamSynchronize"): (1, 3_000),
        ("syncs", "Python between ops", "cudaStreamSynchronize"): (1, 2_000),
        ("syncs", "launch latency", "cudaStreamSynchronize"): (1, 5_000),
        ("host", "host op", None): (1, 1_000),
        ("host", "Python between ops", None): (1, 2_000),
        ("launches", "launch latency", None): (1, 7_000),
    }
    assert {row.op for row in rows if row.part == "kernels"} == {"aten::mm", "aten::add"}
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_without_a_device_operators_share_the_step(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).op("aten::linear", 10, 50).op("aten::addmm", 20, 30)
    drawing.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 70, 20)
    assert told(analysed("step_costs", opened(drawing, tmp_path))) == {
        ("operators", "host op", "aten::addmm"): (1, 30_000),
        ("operators", "host op", "aten::linear"): (1, 20_000),
        ("data", "data", None): (1, 20_000),
        ("other", "other", None): (1, 30_000),
    }


def test_a_profile_without_events(tmp_path: Path) -> None:
    table = analysed("step_costs", opened(Drawing(), tmp_path))
    assert list(table) == []
    assert table.notes


def test_more_kinds_of_copies_than_a_sweep_can_tell_apart(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 1000)
    for number in range(80):
        drawing.launch("cudaMemcpyAsync", number * 10, 1, corr=number)
        drawing.memcpy(f"Memcpy {number}", number * 10 + 2, 5, corr=number)
    trace = opened(drawing, tmp_path)
    rows = list(analysed("step_costs", trace))
    assert sum(row.cost_ns for row in rows) == 1_000_000
    (rest,) = [row for row in rows if row.name == "other copies and collectives"]
    assert (rest.calls, rest.cost_ns) == (18, 90_000)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name.partition(".")[0])
def test_the_rows_sum_to_the_steps(path: Path) -> None:
    trace = open_shared(path)
    rows: list[StepCost] = list(step_costs(trace))
    assert sum(row.cost_ns for row in rows) == sum(row.dur_ns for row in steps(trace, by="any"))
    assert all(row.cost_ns >= 0 for row in rows)


def test_late_time_by_operator(tmp_path: Path) -> None:
    drawing = (
        Drawing()
        .mark(1, 0, 100)
        .op("aten::linear", 2, 30)
        .op("aten::addmm", 5, 20)
        .launch("cudaLaunchKernel", 10, 2, corr=1)
        .kernel("gemm", 12, 8, corr=1)
        .op("aten::relu", 40, 20)
        .launch("cudaLaunchKernel", 50, 2, corr=2)
        .kernel("relu", 52, 8, corr=2)
    )
    found = {
        row.name: (row.starved_ns, row.own_ns) for row in analysed("starving_ops", opened(drawing, tmp_path))
    }
    assert found == {
        None: (2_000 + 8_000 + 40_000, 50_000),
        "aten::addmm": (5_000 + 5_000, 20_000),
        "aten::linear": (3_000 + 7_000, 10_000),
        "aten::relu": (10_000, 20_000),
    }
