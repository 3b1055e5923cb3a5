from __future__ import annotations

from pathlib import Path

from tests.drawing import Drawing

import stepscope
from stepscope.analyses.many_joins import ManyJoins


def drawn(
    folder: Path,
    launches: int,
    *,
    op: str = "aten::stack",
    step: bool = True,
    views: int = 0,
    after: str = "aten::linear",
) -> list[ManyJoins]:
    """The table of a step that makes a list for 300 µs and joins what is in it, with so many launches."""
    drawing = Drawing()
    drawing.mark(1, 0 if step else 5_000, 2_000)
    drawing.op("aten::relu", 100, 50)
    drawing.op(op, 450, 500)
    for number in range(views):
        drawing.op("aten::unsqueeze", 451 + 0.5 * number, 0.4)
    drawing.op("aten::cat", 600, 300)
    for number in range(launches):
        drawing.launch("cudaLaunchKernel", 610 + 10 * number, 5, corr=number + 1)
        drawing.kernel("CatArrayBatchedCopy", 620 + 10 * number, 3, corr=number + 1)
    drawing.op(after, 1_000, 50)
    folder.mkdir(exist_ok=True)
    return list(stepscope.open(drawing.write(folder / "drawn.json")).table("many_joins"))


def test_a_call_that_joins_hundreds_of_tensors(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, 16)
    assert row == ManyJoins("aten::stack", None, 1, 15 * 64, 500_000, 300_000, 48_000)


def test_views_of_single_tensors_tell_their_number(tmp_path: Path) -> None:
    (row,) = drawn(tmp_path, 2, views=256)
    assert (row.calls, row.tensors, row.host_ns) == (1, 256, 500_000)
    assert drawn(tmp_path / "few", 2, views=100) == []


def test_few_tensors_other_operators_and_what_is_in_no_step_are_not_listed(tmp_path: Path) -> None:
    assert drawn(tmp_path / "few", 3) == []
    assert drawn(tmp_path / "other", 16, op="aten::special") == []
    assert drawn(tmp_path / "outside", 16, step=False) == []
    assert drawn(tmp_path / "norms", 16, after="aten::linalg_vector_norm") == []
