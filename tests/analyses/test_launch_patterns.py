from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.launch_patterns import LaunchPattern

Kernel = tuple[str, int]


def drawn(folder: Path, *steps: list[Kernel]) -> list[LaunchPattern]:
    """The table of steps that launch kernels of some names and grids."""
    drawing, number = Drawing(), 0
    for step, kernels in enumerate(steps):
        since = 1_000 * step
        drawing.mark(step, since, 990)
        for place, (name, blocks) in enumerate(kernels):
            number += 1
            drawing.launch("cudaLaunchKernel", since + 10 * place + 1, 2, corr=number)
            drawing.kernel(
                name, since + 10 * place + 5, 3, corr=number, grid=[blocks, 1, 1], block=[128, 1, 1]
            )
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("launch_patterns"))


def test_steps_with_the_same_kernels_in_any_order_are_one_row(tmp_path: Path) -> None:
    rows = drawn(tmp_path, [("a", 8), ("b", 4), ("a", 8)], [("a", 8), ("a", 8), ("b", 4)])
    assert rows == [LaunchPattern(2, 0, 3)]


def test_other_grids_and_other_numbers_of_calls_are_other_rows(tmp_path: Path) -> None:
    longer, more = [("a", 16), ("b", 4)], [("a", 8), ("b", 4), ("b", 4)]
    rows = drawn(tmp_path, [("a", 8), ("b", 4)], longer, more, [("a", 8), ("b", 4)])
    assert rows == [LaunchPattern(2, 0, 2), LaunchPattern(1, 1, 2), LaunchPattern(1, 2, 3)]
