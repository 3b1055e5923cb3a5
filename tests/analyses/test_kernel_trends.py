"""Kernels that take longer and longer: the table, and the doubt about a GPU that slows down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.drawing import Drawing
from tests.samples import DATA, open_shared

import stepscope
from stepscope.analyses.kernel_trends import kernel_trends
from stepscope.analyses.trust import Caveat, trust
from stepscope.store.trace import Trace

Length = Callable[[str, int], int]
GEMMS = ("sm90_gemm_a", "sm90_gemm_b")


def drawn(folder: Path, length: Length, steps: int = 8, names: Sequence[str] = GEMMS) -> Trace:
    """Steps of a millisecond, in each of which every kernel runs twice, as long as `length` says."""
    folder.mkdir(exist_ok=True)
    drawing, corr = Drawing(), 0
    for step in range(steps):
        drawing.mark(step, 1000 * step, 990)
        for place, name in enumerate((*names, *names)):
            corr += 1
            at = 1000 * step + 10 + 200 * place
            drawing.op("aten::mm", at, 5).launch("cudaLaunchKernel", at + 1, 2, corr=corr)
            drawing.kernel(name, at + 10, length(name, step), corr=corr, grid=[place % len(names) + 1, 1, 1])
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def doubts(trace: Trace) -> list[Caveat]:
    return [row for row in trust(trace) if row.what == "GPU slows down"]


def test_quarters_of_the_steps(tmp_path: Path) -> None:
    rows = list(kernel_trends(drawn(tmp_path, lambda name, step: 50 + step + 50 * (name == GEMMS[1]))))
    figures = [(row.name, row.steps, row.calls_per_step) for row in rows]
    assert figures == [(GEMMS[1], 8, 2), (GEMMS[0], 8, 2)]
    assert (rows[1].first_ns, rows[1].middle_ns, rows[1].last_ns) == (101_000, 107_000, 113_000)


def test_kernels_that_slow_down_together_are_a_doubt(tmp_path: Path) -> None:
    (doubt,) = doubts(drawn(tmp_path, lambda name, step: 80 + 2 * step))
    assert "took 15 % longer in the last quarter" in doubt.explanation
    assert doubt.count == 8
    assert doubt.effect_share is not None
    assert 0 < doubt.effect_share < 0.05
    assert "nvidia-smi" in doubt.advice


@pytest.mark.parametrize(
    "length",
    [
        lambda name, step: 80,
        lambda name, step: 94 - 2 * step,
        lambda name, step: 80 + 2 * step * (name == GEMMS[0]),  # one of them has more to do
        lambda name, step: 80 + 20 * (step >= 6),  # it jumps
        lambda name, step: 80 + step // 3,
        lambda name, step: 4 + step,  # too short to tell
    ],
)
def test_otherwise_there_is_no_doubt(tmp_path: Path, length: Length) -> None:
    assert doubts(drawn(tmp_path, length)) == []


def test_a_trend_needs_steps_and_kernels(tmp_path: Path) -> None:
    for place, trace in enumerate(
        (
            drawn(tmp_path / "a", lambda name, step: 80 + 9 * step, steps=3),
            drawn(tmp_path / "b", lambda name, step: 80 + 9 * step, names=("elementwise_a", "elementwise_b")),
        )
    ):
        table = kernel_trends(trace)
        assert len(table) == 0, place
        assert table.notes
    assert doubts(drawn(tmp_path / "c", lambda name, step: 80 + 9 * step, names=GEMMS[:1])) == []


@pytest.mark.slow
def test_a_gpu_at_its_power_limit() -> None:
    """Large products on an H200: the clock falls within the four steps of the recording."""
    (doubt,) = doubts(open_shared(DATA / "faults" / "fair_odd_head.mended.light.pt.trace.json.gz"))
    assert "took 13 % longer" in doubt.explanation
    assert doubts(open_shared(DATA / "faults" / "healthy_convnet.healthy.light.pt.trace.json.gz")) == []
