"""From where in libraries and modules operators are called."""

from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.library_functions import library_functions
from stepscope.analyses.step_ops import step_ops
from stepscope.store.trace import Trace

US = 1_000
LIBRARY = "transformers/models/gpt2/modeling_gpt2.py(7): forward"


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def test_operators_by_function_and_module(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 200).frame("train.py(3): main", 1, 190)
    for layer in range(2):
        at = 10 + 50 * layer
        drawing.frame(f"nn.Module: GPT2Block_{layer}", at, 40)
        drawing.frame(LIBRARY, at + 1, 38).frame(f"nn.Module: Conv1D_{layer}", at + 2, 30)
        drawing.op("aten::linear", at + 3, 20).op("aten::mm", at + 4, 10)
        drawing.launch("cudaLaunchKernel", at + 5, 2, corr=layer + 1)
        drawing.kernel("gemm", at + 100, 30, corr=layer + 1)
    drawing.launch("cudaDeviceSynchronize", 120, 5)
    trace = opened(drawing, tmp_path)
    found = {
        row.name: (row.user_frame, row.library_frame, row.module, row.within, row.calls, row.device_ns)
        for row in library_functions(trace)
    }
    place = ("train.py(3): main", LIBRARY, "GPT2Block.Conv1D")
    assert found == {
        "aten::linear": (*place, None, 2, 60 * US),
        "aten::mm": (*place, "aten::linear", 2, 60 * US),
        "cudaDeviceSynchronize": ("train.py(3): main", None, None, None, 1, 0),
    }
    # The calls of the program itself are no operators.
    assert {row.name for row in step_ops(trace)} == {"aten::linear", "aten::mm"}


def test_without_stacks_it_says_how_to_record(tmp_path: Path) -> None:
    found = library_functions(opened(Drawing().mark(1, 0, 50).op("aten::mm", 1, 5), tmp_path))
    assert not len(found)
    assert "with_stack=True" in found.notes[0]
