"""Throughput: of what, how much, and how that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.analyses.test_step_classes import accumulate, launching, trace_of, train
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.throughput import throughput
from stepscope.store.trace import Trace


def told(trace: Trace, **options: Any) -> dict[str, tuple[Any, ...]]:
    """Per unit: how many a second, how many a step, and the basis."""
    return {row.unit: (row.per_second, row.per_step, row.basis) for row in throughput(trace, **options)}


def trained(*steps: tuple[int, int, int]) -> Drawing:
    """Steps of (micro-steps, rows, µs)."""
    drawing = Drawing()
    at = 0
    for number, (passes, rows, dur) in enumerate(steps):
        train(drawing, number, at, passes=passes, rows=rows, dur=dur)
        at += dur
    return drawing


def test_samples_follow_from_what_enters_the_model(tmp_path: Path) -> None:
    # Three steps of 100, 110 and 120 µs on 16 rows each; one with two passes is of another class.
    trace = trace_of(trained((1, 16, 100), (1, 16, 110), (2, 16, 500), (1, 16, 120)), tmp_path)
    found = told(trace)
    assert found["steps"] == (pytest.approx(1e9 / 110_000), 1.0, "counted")
    per_second, per_step, basis = found["samples"]
    assert (per_second, per_step) == (pytest.approx(16e9 / 110_000), 16.0)
    assert basis == "inferred from [16, 8] into the first aten::linear"
    assert found["tokens"][:2] == (None, None)
    assert "--tokens-per-step" in found["tokens"][2]
    assert "Counted: 3 of 4 steps, those of the most frequent class, as recorded." in throughput(trace).notes


def test_micro_steps_and_batches_of_other_shapes_add_up(tmp_path: Path) -> None:
    # Two passes a step, over 16, 16 and 32 rows: 128 samples in 300 µs.
    found = told(trace_of(trained((2, 16, 100), (2, 16, 100), (2, 32, 100)), tmp_path))
    per_second, per_step, basis = found["samples"]
    assert per_step == pytest.approx(128 / 3)
    assert per_second == pytest.approx(128e9 / 300_000)
    assert basis == "inferred from [16, 8] and others into the first aten::linear, 2 passes a step"


def test_given_numbers_come_first(tmp_path: Path) -> None:
    found = told(trace_of(trained((1, 16, 100)), tmp_path), samples_per_step=5, tokens_per_step=7)
    assert found["samples"] == (pytest.approx(50_000), 5.0, "given")
    assert found["tokens"] == (pytest.approx(70_000), 7.0, "given")


def test_indices_of_an_embedding_are_tokens(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 1000)
    args = {"Input Dims": [[1000, 64], [4, 128]], "Input type": ["float", "long int"]}
    drawing.op("aten::embedding", 5, 5, args=args)
    found = told(trace_of(drawing, tmp_path))
    assert (found["samples"][1], found["tokens"][1]) == (4.0, 512.0)


def test_packed_tokens_are_no_samples(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 1000)
    args = {"Input Dims": [[1000, 64], [512]], "Input type": ["float", "long int"]}
    drawing.op("aten::embedding", 5, 5, args=args)
    found = told(trace_of(drawing, tmp_path))
    assert (found["samples"][1], found["tokens"][1]) == (None, 512.0)
    assert "packed tokens" in found["samples"][2]


def test_a_serving_engine_names_its_tokens(tmp_path: Path) -> None:
    # Decodes of 4 and 2 tokens, 10 µs each: 6 tokens in 20 µs. A prefill is of another class.
    drawing = Drawing().annotation("step[EXTEND bs=1 toks=100]", 0, 50)
    drawing.annotation("step[DECODE bs=4]", 50, 10).annotation("step[DECODE bs=2]", 60, 10)
    found = told(trace_of(drawing, tmp_path))
    assert found["tokens"] == (pytest.approx(6e9 / 20_000), 3.0, "names of the iterations")
    assert found["samples"][1] is None


@pytest.mark.parametrize(
    "drawing, reason",
    [
        (launching([3, 3]), "no operators in the profile"),
        (Drawing().mark(0, 0, 10).op("aten::linear", 1, 2), "nothing tells what enters the model"),
        (Drawing().op("aten::linear", 1, 2), "no steps are known"),
    ],
)
def test_what_is_not_known_has_a_reason(drawing: Drawing, reason: str, tmp_path: Path) -> None:
    found = told(trace_of(drawing, tmp_path))
    for unit in ("samples", "tokens"):
        assert found[unit][:2] == (None, None)
        assert reason in found[unit][2]
        assert f"--{unit}-per-step" in found[unit][2]


def test_the_whole_trace_is_not_counted_as_a_step(tmp_path: Path) -> None:
    trace = trace_of(Drawing().op("aten::linear", 0, 10), tmp_path)
    assert told(trace)["steps"][:2] == (None, None)
    assert told(trace, samples_per_step=20)["samples"] == (pytest.approx(2e6), 20.0, "given")


def test_no_events_no_rows(tmp_path: Path) -> None:
    table = throughput(trace_of(Drawing(), tmp_path))
    assert len(table) == 0
    assert len(table.notes) == 1


def test_recorded_by_torch(torch: Any, tmp_path: Path) -> None:
    accumulate(torch, tmp_path / "now.json", [(2, 4), (2, 4), (2, 6)])
    found = told(stepscope.open(tmp_path / "now.json", store=tmp_path / "store"))
    assert found["samples"][1] == pytest.approx((8 + 8 + 12) / 3)


def test_real_batches(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """Batches that the programs of the samples are known to have; read off their first operators."""
    known = {
        "h200_resnet50.pt.trace.json.gz": (32.0, None),
        "h200_mem_timeline.pt.trace.json.gz": (32.0, None),
        "h200_slow_item.pt.trace.json.gz": (64.0, None),
        "tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz": (16.0, 16.0 * 559),
        "tl_vllm_decode_full_graph.json.gz": (None, 32.0),
        "tl_b200_eager_trace.json.gz": (None, 888.0),
        "h200_rl_churn.pt.trace.json.gz": (None, None),
    }
    for name, (samples, tokens) in known.items():
        found = told(open_shared(sample(name)))
        assert (found["samples"][1], found["tokens"][1]) == (samples, tokens), name


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_sample(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    rows = throughput(open_shared(sample(name))).records()
    assert [row["unit"] for row in rows] == ["steps", "samples", "tokens"]
    for row in rows:
        assert (row["per_second"] is None) == (row["per_step"] is None)
        if row["per_second"] is not None:
            assert row["per_second"] * row["step_ns"] == pytest.approx(row["per_step"] * 1e9)
        assert row["basis"]
