"""Operators by name, by what they were given, and by the place in the user's code that called them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.ops import Op, OpOfFrame, OpOfModule, OpOfShape, ops
from stepscope.store.trace import Trace
from stepscope.tables import Table

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
SUMS = ("calls", "host_self_ns", "host_self_no_runtime_ns", "device_self_ns")
FIGURES = (
    "calls",
    "host_total_ns",
    "host_self_ns",
    "host_self_no_runtime_ns",
    "device_self_ns",
    "device_total_ns",
)


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def given(*sizes: list[int], types: str = "float") -> dict[str, Any]:
    return {"Input Dims": list(sizes), "Input type": [types] * len(sizes)}


def figures(table: Table[Op], *keys: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    return {
        tuple(row[key] for key in keys): tuple(row[column] for column in FIGURES) for row in table.records()
    }


def test_by_name_there_are_no_more_columns(tmp_path: Path) -> None:
    table = ops(opened(Drawing().op("aten::mm", 0, 1, args=given([2, 2])), tmp_path))
    assert [column.name for column in table.columns] == ["name", *FIGURES]
    assert table.row is Op


def test_by_shape(tmp_path: Path) -> None:
    # Two sizes, and one of them in two types. The launch takes 1 of the first call.
    drawing = Drawing().op("aten::mm", 0, 10, args=given([2, 2], [2, 2]))
    drawing.launch("cudaLaunchKernel", 2, 1, corr=1).kernel("k", 20, 5, corr=1)
    drawing.op("aten::mm", 10, 20, args=given([2, 2], [2, 2]))
    drawing.op("aten::mm", 30, 40, args=given([4, 2], [2, 2]))
    drawing.op("aten::mm", 70, 3, args=given([2, 2], [2, 2], types="c10::Half"))
    drawing.op("aten::mm", 80, 7)
    table = ops(opened(drawing, tmp_path), by="shape")
    small, float_, half = "[[2,2],[2,2]]", '["float","float"]', '["c10::Half","c10::Half"]'
    assert figures(table, "name", "input_dims", "input_types") == {
        ("aten::mm", small, float_): (2, 30_000, 30_000, 29_000, 5_000, 5_000),
        ("aten::mm", "[[4,2],[2,2]]", float_): (1, 40_000, 40_000, 40_000, 0, 0),
        ("aten::mm", small, half): (1, 3_000, 3_000, 3_000, 0, 0),
        ("aten::mm", None, None): (1, 7_000, 7_000, 7_000, 0, 0),
    }
    assert table.row is OpOfShape


def test_calls_inside_calls_of_the_name_count_for_what_they_were_given(tmp_path: Path) -> None:
    # A conversion to half precision calls the same operator again: [0, 100) holds [20, 80) holds [30, 40),
    # the first and the last with the same input. Work of 5 was launched in the second, of 7 in the third.
    drawing = Drawing().op("aten::conv2d", 0, 100, args=given([8]))
    drawing.op("aten::conv2d", 20, 60, args=given([8], types="c10::Half"))
    drawing.op("aten::conv2d", 30, 10, args=given([8]))
    drawing.launch("cudaLaunchKernel", 31, 1, corr=1).launch("cudaLaunchKernel", 50, 1, corr=2)
    drawing.kernel("k", 60, 7, corr=1).kernel("k", 70, 5, corr=2)
    # Beside it an operator that is never inside its like, with the first one inside: it stays as it is.
    drawing.op("aten::relu", 200, 50, args=given([8])).op("aten::conv2d", 210, 30, args=given([8]))
    trace = opened(drawing, tmp_path)
    float_, half = '["float"]', '["c10::Half"]'
    assert figures(ops(trace, by="shape"), "name", "input_dims", "input_types") == {
        # 100 and 30 are open; innermost for 20 + 20 + 10 + 30, less the call in the third.
        ("aten::conv2d", "[[8]]", float_): (3, 130_000, 80_000, 79_000, 7_000, 12_000),
        ("aten::conv2d", "[[8]]", half): (1, 60_000, 50_000, 49_000, 5_000, 12_000),
        ("aten::relu", "[[8]]", float_): (1, 50_000, 20_000, 20_000, 0, 0),
    }
    assert figures(ops(trace), "name") == {
        ("aten::conv2d",): (4, 130_000, 130_000, 128_000, 12_000, 12_000),
        ("aten::relu",): (1, 50_000, 20_000, 20_000, 0, 0),
    }


def test_calls_inside_calls_on_several_threads(tmp_path: Path) -> None:
    # The same on two threads at once; a launch on one is none of the other's.
    drawing = Drawing()
    for thread in (1, 2):
        drawing.op("aten::to", 0, 50, thread=thread, args=given([thread]))
        drawing.op("aten::to", 10, 20, thread=thread, args=given([3]))
    drawing.launch("cudaMemcpyAsync", 15, 2, corr=1, thread=2).memcpy("Memcpy HtoD", 20, 6, corr=1)
    assert figures(ops(opened(drawing, tmp_path), by="shape"), "input_dims") == {
        ("[[1]]",): (1, 50_000, 30_000, 30_000, 0, 0),
        ("[[2]]",): (1, 50_000, 30_000, 30_000, 0, 6_000),
        ("[[3]]",): (2, 40_000, 40_000, 38_000, 6_000, 6_000),
    }


def test_by_user_frame(tmp_path: Path) -> None:
    # Two places call the same operator; the backward of the first counts for it, whichever thread runs it.
    forward = {"Sequence number": 4, "Fwd thread id": 0}
    backward = {"Sequence number": 4, "Fwd thread id": 1}
    drawing = Drawing().frame("train.py(1): main", 0, 200)
    drawing.frame("model.py(10): forward", 10, 40).frame("torch/nn/functional.py(5): linear", 12, 30)
    drawing.op("aten::linear", 15, 20, args=forward)
    drawing.frame("train.py(30): evaluate", 60, 30).op("aten::linear", 65, 10)
    drawing.op("AddmmBackward0", 100, 25, thread=2, args=backward).op("aten::mm", 105, 15, thread=2)
    drawing.launch("cudaLaunchKernel", 106, 1, corr=1, thread=2).kernel("k", 110, 9, corr=1)
    table = ops(opened(drawing, tmp_path), by="user_frame")
    assert figures(table, "name", "user_frame") == {
        ("aten::linear", "model.py(10): forward"): (1, 20_000, 20_000, 20_000, 0, 0),
        ("aten::linear", "train.py(30): evaluate"): (1, 10_000, 10_000, 10_000, 0, 0),
        ("AddmmBackward0", "model.py(10): forward"): (1, 25_000, 10_000, 10_000, 0, 9_000),
        ("aten::mm", "model.py(10): forward"): (1, 15_000, 15_000, 14_000, 9_000, 9_000),
    }
    assert table.row is OpOfFrame


def test_by_module(tmp_path: Path) -> None:
    # The backward of an operator counts for the module of its forward.
    forward = {"Sequence number": 4, "Fwd thread id": 0}
    backward = {"Sequence number": 4, "Fwd thread id": 1}
    drawing = Drawing().frame("nn.Module: Net_0", 0, 90).frame("nn.Module: Linear_3", 10, 40)
    drawing.op("aten::linear", 15, 20, args=forward).op("aten::add", 60, 10).op("aten::add", 120, 7)
    drawing.op("AddmmBackward0", 100, 25, thread=2, args=backward)
    table = ops(opened(drawing, tmp_path), by="module")
    assert figures(table, "name", "module") == {
        ("aten::linear", "Linear_3"): (1, 20_000, 20_000, 20_000, 0, 0),
        ("aten::add", "Net_0"): (1, 10_000, 10_000, 10_000, 0, 0),
        ("aten::add", None): (1, 7_000, 7_000, 7_000, 0, 0),
        ("AddmmBackward0", "Linear_3"): (1, 25_000, 25_000, 25_000, 0, 0),
    }
    assert table.row is OpOfModule


@pytest.mark.parametrize(
    "by,note",
    [
        ("shape", "No shapes: record with record_shapes=True."),
        ("user_frame", "No Python frames: record with with_stack=True."),
        ("module", "No Python frames: record with with_stack=True."),
    ],
)
def test_what_is_missing_is_said(by: Any, note: str, tmp_path: Path) -> None:
    trace = opened(Drawing().op("aten::mm", 0, 10), tmp_path)
    table = ops(trace, by=by)
    assert note in table.notes
    assert figures(table, "name") == figures(ops(trace), "name")


def test_without_operators_that_is_said(tmp_path: Path) -> None:
    trace = opened(Drawing().kernel("k", 0, 10_000), tmp_path)
    assert ops(trace).notes == (
        "Device work launched outside any operator: none.",
        "Device work whose launch is not in the profile: 10.0 ms.",
        "No operators: record with ProfilerActivity.CPU.",
    )


@pytest.mark.parametrize("by", ["shape", "user_frame", "module"])
@pytest.mark.parametrize("name", ["transformer_accumulation", "checkpointed", "mlp_loader", "convolution"])
def test_the_parts_of_a_name_sum_to_it(name: str, by: Any, tmp_path: Path) -> None:
    trace = open_shared(RECORDINGS / f"{name}.pt.trace.json.gz")
    parts: defaultdict[str, list[Op]] = defaultdict(list)
    for row in ops(trace, by=by):
        parts[str(row.name)].append(row)
    whole = {str(row.name): row for row in ops(trace)}
    assert parts.keys() == whole.keys()
    for op, rows in parts.items():
        for column in SUMS:
            assert sum(getattr(row, column) for row in rows) == getattr(whole[op], column), (op, column)
        for column in ("host_total_ns", "device_total_ns"):
            assert max(getattr(row, column) for row in rows) <= getattr(whole[op], column)
            assert sum(getattr(row, column) for row in rows) >= getattr(whole[op], column)
