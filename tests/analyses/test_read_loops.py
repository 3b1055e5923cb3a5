from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.read_loops import ReadLoops


def drawn(folder: Path, *, reads: int = 20, apart: int = 100, between: str = "aten::lt") -> list[ReadLoops]:
    """The table of a step that reads so many numbers, so many µs apart, with an operator between them."""
    drawing = Drawing().mark(1, 0, 100 + reads * apart)
    for number in range(reads):
        at = 10 + number * apart
        drawing.op(between, at, 20).launch("cudaLaunchKernel", at + 5, 2, corr=2 * number + 1)
        drawing.kernel("compare", at + 10, 3, corr=2 * number + 1)
        drawing.op("aten::item", at + 30, 40).op("aten::_local_scalar_dense", at + 35, 30)
        drawing.launch("cudaMemcpyAsync", at + 40, 2, corr=2 * number + 2)
        drawing.memcpy("Memcpy DtoH (Device -> Pageable)", at + 45, 2, corr=2 * number + 2)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("read_loops"))


def test_a_loop_reads_one_number_after_another(tmp_path: Path) -> None:
    # From the first read, at 45 µs, to the end of the last: 19 repetitions later, and 30 µs.
    # In it are 20 copies of 2 µs and 19 kernels of 3 µs.
    assert drawn(tmp_path) == [ReadLoops(1, 20, 38, 39, 1_930_000, 97_000)]


def test_few_reads_and_reads_far_apart_are_no_loop(tmp_path: Path) -> None:
    assert drawn(tmp_path, reads=15) == []
    assert drawn(tmp_path, apart=1_200) == []


def test_layers_that_read_are_no_loop_over_numbers(tmp_path: Path) -> None:
    assert drawn(tmp_path, between="aten::addmm") == []
