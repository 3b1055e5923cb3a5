from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.findings.drawn import assert_bounded, busy_pace, drawn

import stepscope
from stepscope.analyses.growing_passes import GrowingPasses, growing_passes
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice
from stepscope.findings.rules.recomputed_tokens import recomputed_tokens
from stepscope.tables import Table

STEP = busy_pace(steps=1)
INFERENCE = {"steps": 1, "backward_passes": 0, "optimizer": False}


def run(**told: Any) -> dict[str, Any]:
    """A text that grows from 1,000 to 1,099 tokens."""
    given = {"table": "50000 × 1024", "batch": 1, "passes": 100, "first_length": 1000, "last_length": 1099}
    return {**given, "tokens": 104_950, **told}


def found(*runs: dict[str, Any], kernels: int = 100, step_class: dict[str, Any] = INFERENCE) -> Advice | None:
    steps, classes = drawn(Iteration, {"kernels": kernels}), drawn(StepClass, step_class)
    return recomputed_tokens(STEP, drawn(GrowingPasses, *runs), steps, classes)


def test_a_text_that_is_computed_again_for_each_token() -> None:
    advice = assert_bounded(found(run()), STEP)
    assert "100 forward passes" in advice.because
    assert "from 1,000 to 1,099" in advice.because
    assert "They compute 104,950 tokens" in advice.because
    assert "1,099 are enough" in advice.because
    low, high = advice.saving.device_ns
    assert high == pytest.approx(STEP.busy_ns * (1 - 1099 / 104_950))
    assert low == pytest.approx(STEP.busy_ns * (1 - (1000 + 99 * 300) / 104_950))


def test_short_kernels_and_short_texts_may_gain_nothing() -> None:
    assert assert_bounded(found(run(), kernels=5000), STEP).saving.device_ns[0] == 0
    short = run(first_length=10, last_length=29, passes=20, tokens=390)
    assert assert_bounded(found(short), STEP).saving.device_ns[0] == 0


def test_positions_are_not_counted_beside_tokens() -> None:
    advice = assert_bounded(found(run(batch=2, tokens=209_900), run(table="2048 × 1024")), STEP)
    assert (advice.evidence["tokens"], advice.evidence["runs"]) == (209_900, 1)


def test_it_is_silent() -> None:
    assert found() is None
    assert found(run(), step_class={**INFERENCE, "backward_passes": 1}) is None, "it trains"
    assert found(run(passes=4, first_length=1, last_length=4, tokens=4)) is None, "nothing is computed twice"


def passes(folder: Path, *shapes: list[int]) -> Table[GrowingPasses]:
    drawing = Drawing()
    for place, shape in enumerate(shapes):
        dims: dict[str, Any] = {
            "Input Dims": [[100, 8], shape, [], [], []],
            "Input type": ["float", "long int", "", "", ""],
        }
        drawing.op("aten::embedding", 10 * place, 5, **dims)
    return growing_passes(stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store"))


def test_runs_of_passes(tmp_path: Path) -> None:
    lengths = [*range(5, 15), *range(5, 9), 1, 1, 1, 1, 1, 7, 3, 9]
    rows = [
        (row.table, row.batch, row.passes, row.first_length, row.last_length, row.tokens, row.dur_ns)
        for row in passes(tmp_path, *([2, length] for length in lengths))
    ]
    assert rows == [
        ("100 × 8", 2, 10, 5, 14, 190, 90_000),
        ("100 × 8", 2, 4, 5, 8, 52, 30_000),
    ]


def test_passes_that_grow_otherwise_are_no_runs(tmp_path: Path) -> None:
    shapes = [[1, 4], [1, 6], [1, 8], [1, 10], [1, 12], [3, 5], [2, 6], [3, 7], [2, 8]]
    assert len(passes(tmp_path, *shapes)) == 0


def launched(folder: Path, *tokens: int, kernel: str = "vectorized_gather_kernel<16, long>") -> Any:
    """Passes of a profile without shapes, whose embeddings look up so many tokens one after the other."""
    drawing = Drawing()
    for place, number in enumerate(tokens):
        at = 10 * place
        drawing.op("aten::embedding", at, 9).op("aten::index_select", at + 1, 7).op("aten::gather", at + 2, 5)
        drawing.launch("cudaLaunchKernel", at + 3, 1, corr=place + 1)
        drawing.kernel(kernel, at + 5, 1, corr=place + 1, grid=[number, 1, 1], block=[128, 1, 1])
    rows = growing_passes(stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store"))
    return [
        (row.table, row.batch, row.passes, row.first_length, row.last_length, row.tokens, row.dur_ns)
        for row in rows
    ]


def test_without_shapes_the_launches_of_embeddings_tell_how_long_sequences_are(tmp_path: Path) -> None:
    two = [2 * length for length in (*range(5, 15), *range(5, 9), 1, 1, 1, 1, 7, 3, 9)]
    assert launched(tmp_path, *two) == [
        ("table 1", 2, 10, 5, 14, 190, 90_000),
        ("table 1", 2, 4, 5, 8, 52, 30_000),
    ]


def test_without_shapes_positions_stand_between_the_tokens(tmp_path: Path) -> None:
    both = [count for length in range(6, 12) for count in (3 * length, length)]
    assert launched(tmp_path, *both) == [
        ("table 2", 3, 6, 6, 11, 153, 100_000),
        ("table 1", 1, 6, 6, 11, 51, 100_000),
    ]


@pytest.mark.parametrize(
    "tokens",
    [
        [64, 64, 64, 64, 64],  # a cache, or training
        [10, 13, 16, 19, 22],  # not whole sequences
        [64, 128, 64, 128, 64],  # lengths of batches
        [30, 32, 34],  # too few
    ],
)
def test_without_shapes_other_launches_are_no_runs(tokens: list[int], tmp_path: Path) -> None:
    assert launched(tmp_path, *tokens) == []


def test_other_kernels_do_not_tell_lengths(tmp_path: Path) -> None:
    assert launched(tmp_path, *range(5, 15), kernel="indexSelectLargeIndex") == []
