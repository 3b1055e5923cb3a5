"""Which operators launch which kernels."""

from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.op_kernels import OpKernel, op_kernels


def test_each_pair_of_operator_and_kernel_is_a_row(tmp_path: Path) -> None:
    drawing = Drawing().op("aten::mm", 0, 30).op("aten::add", 40, 10)
    for corr, (start, name, took) in enumerate(
        [(5, "gemm", 6), (10, "gemm", 4), (15, "fill", 10), (45, "gemm", 30)], 1
    ):
        drawing.launch("cudaLaunchKernel", start, 1, corr=corr).kernel(name, start * 10, took, corr=corr)
    drawing.launch("cudaLaunchKernel", 80, 1, corr=9).kernel("alone", 900, 2, corr=9)
    file = tmp_path / "trace.json"
    drawing.write(file)
    trace = stepscope.open(file, store=tmp_path / "store")
    events = {
        (row["name"], row["dur_ns"]): row["event"]
        for row in trace.rows("SELECT name, dur_ns, event FROM device_work")
    }
    assert list(op_kernels(trace)) == [
        OpKernel("aten::add", "gemm", "kernel", 1, 30_000, 1.0, 0.75, 30_000, events["gemm", 30_000]),
        OpKernel("aten::mm", "fill", "kernel", 1, 10_000, 0.5, 1.0, 10_000, events["fill", 10_000]),
        OpKernel("aten::mm", "gemm", "kernel", 2, 10_000, 0.5, 0.25, 6_000, events["gemm", 6_000]),
        OpKernel(None, "alone", "kernel", 1, 2_000, 1.0, 1.0, 2_000, events["alone", 2_000]),
    ]


def test_without_device_work_that_is_said(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    Drawing().op("aten::mm", 0, 30).write(file)
    table = op_kernels(stepscope.open(file, store=tmp_path / "store"))
    assert len(table) == 0
    assert table.notes == ("The profile has no device work.",)
