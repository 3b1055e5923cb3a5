"""Python functions that devices waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.analyses.test_code import analysed, opened
from tests.drawing import Drawing

MAIN, STEP = "train.py(3): main", "train.py(9): step"
PREPARE, RESIZE = "train.py(20): prepare", "PIL/Image.py(5): resize"
LOW = "<built-in method resize of ImagingCore object at 0x7f>"


def working(*steps: int) -> Drawing:
    """Steps of 1 ms that prepare for so many µs, and then launch a kernel that takes 100 µs."""
    drawing = Drawing()
    for number, prepared in enumerate(steps):
        at = 1_000 * number
        drawing.mark(number, at, 1_000).frame(STEP, at + 10, 980)
        if prepared:
            drawing.frame(PREPARE, at + 20, prepared).frame(RESIZE, at + 30, prepared - 20)
            drawing.frame(LOW, at + 40, prepared - 60)
        drawing.frame("<built-in function linear>", at + 800, 50).op("aten::linear", at + 810, 30)
        drawing.launch("cudaLaunchKernel", at + 820, 5, corr=number + 1)
        drawing.kernel("gemm", at + 850, 100, corr=number + 1)
    return drawing.frame(MAIN, 0, 1_000 * len(steps))


def rows_of(drawing: Drawing, folder: Path) -> list[Any]:
    return list(analysed("host_functions", opened(drawing, folder)))


def test_a_function_by_hand(tmp_path: Path) -> None:
    (row,) = rows_of(working(500, 500), tmp_path)
    assert row.outer == PREPARE
    assert (row.outer_idle_ns, row.outer_host_ns, row.outer_calls) == (1_000_000, 1_000_000, 2)
    # What holds two thirds of 500 µs is followed: 480 in resize, 440 in what it calls.
    assert row.function == LOW.replace("0x7f", "0x…")
    assert (row.idle_ns, row.calls) == (880_000, 2)
    assert row.path == f"{PREPARE} → {RESIZE} → {row.function}"
    assert (row.part, row.part_idle_ns) == (None, None)
    assert (row.user_frame, row.phase) == (PREPARE, "other")
    assert row.share == 0.5
    assert (row.long_steps, row.longest_step, row.usual_step_ns) == (2, 0, 500_000)
    assert 0 < row.recording_low_ns < row.recording_high_ns < 10_000


def test_the_step_in_which_it_ran_is_told(tmp_path: Path) -> None:
    (row,) = rows_of(working(0, 0, 600, 0), tmp_path)
    assert (row.long_steps, row.longest_step, row.longest_step_ns, row.usual_step_ns) == (1, 2, 600_000, 0)


def test_a_function_with_several_parts_is_named_itself(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 1_000).frame(STEP, 0, 1_000).frame(PREPARE, 100, 500)
    drawing.frame("a.py(1): load", 100, 300).frame("b.py(1): scale", 400, 150)
    drawing.op("aten::mm", 700, 20).launch("cudaLaunchKernel", 705, 5, corr=1).kernel("k", 710, 5, corr=1)
    (row,) = rows_of(drawing, tmp_path)
    assert (row.function, row.outer, row.part, row.part_idle_ns) == (
        PREPARE,
        PREPARE,
        "a.py(1): load",
        300_000,
    )
    assert (row.long_steps, row.longest_step) == (None, None)  # one step cannot tell


def test_time_while_the_device_works_is_no_idle_time(tmp_path: Path) -> None:
    drawing = working(500, 500)
    drawing.launch("cudaLaunchKernel", 1_015, 1, corr=9).kernel("long", 1_017, 300, corr=9)
    (row,) = rows_of(drawing, tmp_path)
    assert (row.outer_host_ns, row.outer_idle_ns) == (1_000_000, 1_000_000 - (317 - 20) * 1_000)


def test_a_generator_that_goes_on_is_one_function(tmp_path: Path) -> None:
    drawing = working(0, 0)
    drawing.frame("data.py(5): items", 20, 300).frame("data.py(9): items", 1_020, 300)
    (row,) = rows_of(drawing, tmp_path)
    assert (row.outer, row.outer_idle_ns, row.long_steps) == ("data.py(5): items", 600_000, 2)


def test_launching_waiting_compiling_and_the_profiler_are_left_out(tmp_path: Path) -> None:
    drawing = working(0, 0).frame("torch/profiler/profiler.py(7): step", 20, 200)
    drawing.frame("torch/_dynamo/convert_frame.py(7): compile", 300, 200).frame(
        "sympy/core.py(1): add", 310, 100
    )
    drawing.frame("torch/cuda/__init__.py(1): synchronize", 1_020, 300)
    drawing.launch("cudaDeviceSynchronize", 1_021, 298)
    assert rows_of(drawing, tmp_path) == []


def test_without_stacks_there_is_nothing_to_name(tmp_path: Path) -> None:
    table = analysed("host_functions", opened(Drawing().mark(0, 0, 10).op("aten::mm", 1, 2), tmp_path))
    assert list(table) == []
    assert "with_stack=True" in table.notes[0]


@pytest.mark.parametrize("folder", ["/tmp/torchinductor_me", "/mnt/cache"])
def test_what_the_compiler_wrote_is_the_cost_of_launching(folder: str, tmp_path: Path) -> None:
    drawing = working(0, 0)
    written = f"{folder}/2m/c2mkao3otvkxy2dtseqm6twqx6rd5yoae5cdt3i4gvljlv6hzzrx.py(9): call"
    for at in (20, 1_020):
        drawing.frame("torch/autograd/function.py(5): apply", at, 600).frame(written, at + 10, 560)
        drawing.frame("torch/_inductor/runtime/triton_heuristics.py(7): run", at + 20, 500)
    assert rows_of(drawing, tmp_path) == []
