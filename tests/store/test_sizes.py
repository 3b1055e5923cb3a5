"""Sizes that no memory has: taken out and counted, and every sum stands."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.store.sizes import MOST_BYTES, MOST_SUMMED, BelievedSizes


def rows(*sizes: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"event": pa.array(range(len(sizes)), pa.int64()), "bytes": pa.array(sizes, pa.int64())}
    )


@pytest.mark.parametrize("size", [MOST_BYTES + 1, -MOST_BYTES - 1, 2**63 - 1, -(2**63)])
def test_a_size_that_cannot_be(size: int) -> None:
    believed = BelievedSizes()
    assert believed.of(rows(1, size, None, MOST_BYTES)).column(1).to_pylist() == [1, None, None, MOST_BYTES]
    assert believed.taken_out == 1


def test_others_stay_as_they_are() -> None:
    believed, given = BelievedSizes(), rows(5, -5, 0, None)
    assert believed.of(given).equals(given)
    assert believed.of(rows(None)).equals(rows(None))
    assert believed.taken_out == 0


def test_sums_fit_into_64_bits() -> None:
    believed, many = BelievedSizes(), rows(*[MOST_BYTES] * 100)
    kept = 0
    for _ in range(20):
        kept += sum(size or 0 for size in believed.of(many).column(1).to_pylist())
    assert MOST_SUMMED - 100 * MOST_BYTES < kept <= MOST_SUMMED
    assert believed.taken_out == (20 * 100 * MOST_BYTES - kept) // MOST_BYTES


@pytest.mark.slow
def test_the_report_stands(tmp_path: Path) -> None:
    drawing = Drawing()
    for step in range(4):
        drawing.mark(step, 1000 * step, 900)
        for number in range(10):
            at, size = 1000 * step + 50 * number, 999_999_999_999_999_999
            drawing.memcpy("Memcpy HtoD", at, 20, corr=10 * step + number + 1, bytes=size).memory(at, size)
    trace = stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path / "stores")
    told = [one for one in trace.meta.damage if "no memory has" in one.reason]
    assert [one.count for one in told] == [2 * 40]
    assert not [one for one in stepscope.report(trace).not_run if one.crashed]
