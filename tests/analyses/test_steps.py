"""Steps: exactly the oracle's, on random profiles with marks, and whole."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analyses.comparing import differences, oracle_of
from tests.analyses.drawn import HOW, drawings
from tests.analyses.traps.steps import PARTS
from tests.drawing import Drawing
from tests.trying import tries

import stepscope
from stepscope.analyses.steps import Step, steps
from stepscope.tables import Table


def table_of(drawing: Drawing, folder: Path) -> Table[Step]:
    return steps(stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store"))


@pytest.mark.slow
@settings(HOW, max_examples=tries(4, 150))
@given(drawings(marks=True, worlds=6), st.integers(0, 10**15))
def test_a_random_profile_gives_what_the_oracle_gives(drawing: Drawing, base_ns: int) -> None:
    drawing.base_ns = base_ns
    expected = oracle_of(drawing).steps()
    assert expected
    with tempfile.TemporaryDirectory() as folder:
        rows = table_of(drawing, Path(folder)).records()
    assert not differences("steps", rows, expected)
    for row in rows:
        assert sum(row[f"{part}_ns"] for part in (*PARTS, "other")) == row["dur_ns"]
        assert min(row[f"{part}_ns"] for part in (*PARTS, "other")) >= 0


def test_a_step_says_how_far_the_host_runs_ahead(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 10)
    drawing.launch("cudaLaunchKernel", 1, 1, corr=1).kernel("k", 5, 20, corr=1)
    row = table_of(drawing, tmp_path).records()[0]
    assert (row["rank"], row["mark_ns"], row["dur_ns"]) == (0, 10_000, 25_000)


def test_a_kernel_without_a_name_computes(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 10)
    drawing.add({"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 2, "dur": 3, "args": {"device": 0}})
    row = table_of(drawing, tmp_path).records()[0]
    assert (row["kernel_ns"], row["other_ns"]) == (3_000, 7_000)


def test_without_marks_there_are_no_rows_and_a_reason(tmp_path: Path) -> None:
    drawing = Drawing()
    for start in (0, 20, 40):
        drawing.annotation("iteration", start, 10).op("aten::mm", start, 10)
    table = table_of(drawing, tmp_path)
    assert len(table) == 0
    assert len(table.notes) == 1
    assert "stepscope show steps TRACE --by any" in table.notes[0]
