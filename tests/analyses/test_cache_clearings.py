from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.cache_clearings import CacheClearing


def rows(drawing: Drawing, folder: Path) -> list[CacheClearing]:
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("cache_clearings"))


def emptied(*, ends: int = 20) -> Drawing:
    """A step whose operator ends then, with a kernel; frees at 100, and a launch of the next step."""
    drawing = Drawing().mark(1, 0, 150).mark(2, 150, 150)
    drawing.op("aten::mm", 10, ends - 10).launch("cudaLaunchKernel", 12, 2, corr=1).kernel(
        "gemm", 15, 15, corr=1
    )
    drawing.launch("cudaFree", 100, 5, corr=2).launch("cudaFree", 106, 4, corr=3)
    drawing.op("aten::mm", 160, 10).launch("cudaLaunchKernel", 162, 2, corr=4)
    return drawing.kernel("gemm", 165, 10, corr=4)


def test_frees_in_a_row_and_the_pause_before(tmp_path: Path) -> None:
    (row,) = rows(emptied(), tmp_path)
    assert row == CacheClearing(1, frees=2, free_ns=9_000, pause_ns=80_000, idle_ns=70_000)


def test_a_pause_begins_when_all_threads_are_done(tmp_path: Path) -> None:
    backward = emptied().op("autograd::engine::evaluate_function: MmBackward0", 30, 60, thread=2)
    (row,) = rows(backward, tmp_path)
    assert (row.pause_ns, row.idle_ns) == (10_000, 10_000)


def test_a_range_that_ended_is_no_pause(tmp_path: Path) -> None:
    loading = emptied().annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 30, 40)
    (row,) = rows(loading, tmp_path)
    assert row.pause_ns == 30_000


def test_operators_between_frees_part_them(tmp_path: Path) -> None:
    parted = emptied().op("aten::add", 107, 1).launch("cudaFree", 110, 2, corr=9)
    assert [row.frees for row in rows(parted, tmp_path)] == [2, 1]


def test_frees_inside_of_operators_are_the_allocators(tmp_path: Path) -> None:
    assert rows(emptied(ends=120), tmp_path) == []
