"""Iterations of a server by kind: how much of the time is prefill and decode, and their tokens per second."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.iteration_kinds import IterationKind, iteration_kinds
from stepscope.tables import Table


def kinds_of(drawing: Drawing, folder: Path) -> Table[IterationKind]:
    return iteration_kinds(stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store"))


def server(*names: tuple[str, int]) -> Drawing:
    """Iterations one after the other, each with one kernel that ends with it."""
    drawing, start = Drawing(), 0
    for place, (name, dur) in enumerate(names):
        drawing.annotation(name, start, dur).op("aten::mm", start + 1, 10)
        drawing.launch("cudaLaunchKernel", start + 2, 5, corr=place + 1)
        drawing.kernel("gemm", start + 10, dur - 10, corr=place + 1)
        start += dur
    return drawing


def test_each_kind_with_its_tokens(tmp_path: Path) -> None:
    drawing = server(
        ("execute_context_1(600)_generation_0(0)", 300),
        ("execute_context_0(0)_generation_8(8)", 100),
        ("execute_context_1(400)_generation_8(8)", 200),
        ("execute_context_0(0)_generation_16(16)", 100),
        ("execute_context_0(0)_generation_16(16)", 100),
    )
    rows = list(kinds_of(drawing, tmp_path))
    assert [row.kind for row in rows] == ["decode", "prefill", "mixed"]
    decode, prefill, mixed = rows
    assert (decode.iterations, decode.share, decode.total_ns) == (3, 0.6, 300_000)
    assert (decode.requests, decode.mean_ns) == pytest.approx((40 / 3, 100_000))
    assert decode.time_share == pytest.approx(300 / 800)
    assert decode.busy_share == pytest.approx(0.9)
    assert (decode.prefill_tokens_per_s, decode.decode_tokens_per_s) == pytest.approx((0, 40 / 300e-6))
    assert (prefill.prefill_tokens_per_s, prefill.decode_tokens_per_s) == pytest.approx((600 / 300e-6, 0))
    assert mixed.prefill_tokens_per_s == pytest.approx(400 / 200e-6)
    assert mixed.decode_tokens_per_s == pytest.approx(8 / 200e-6)


def test_what_names_do_not_say_stays_unknown(tmp_path: Path) -> None:
    (row,) = kinds_of(server(("execute_new_1_cached_2", 100), ("execute_new_1_cached_3", 100)), tmp_path)
    assert (row.kind, row.requests) == ("mixed", 3.5)
    assert (row.prefill_tokens_per_s, row.decode_tokens_per_s) == (None, None)


def test_training_has_no_kinds(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).op("aten::mm", 1, 10).launch("cudaLaunchKernel", 2, 1, corr=1)
    table = kinds_of(drawing.kernel("gemm", 20, 10, corr=1), tmp_path)
    assert len(table) == 0
    assert table.notes[0] == "No step is known to prefill or to decode."
