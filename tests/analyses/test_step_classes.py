"""Classes of like steps: what tells them apart, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.classed_steps import classed_steps
from stepscope.analyses.iterations import iterations
from stepscope.analyses.step_classes import step_classes
from stepscope.store.trace import Trace

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def trace_of(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def linear(drawing: Drawing, at: int, rows: int) -> None:
    args = {"Input Dims": [[rows, 8], [4, 8], [4]], "Input type": ["float"] * 3}
    drawing.op("aten::linear", at, 4, args=args)


def train(
    drawing: Drawing, step: int, at: int, *, passes: int = 1, rows: int = 16, dur: int = 100, worker: Any = 2
) -> None:
    """A marked step: forward on thread 1, backward (two nodes) on a worker, so often; then the optimizer."""
    drawing.mark(step, at, dur)
    for number in range(passes):
        begin = at + 20 * number
        linear(drawing, begin + 1, rows)
        drawing.op(BACKWARD, begin + 8, 3, thread=worker).op(BACKWARD, begin + 12, 3, thread=worker)
    drawing.annotation("Optimizer.step#SGD.step", at + dur - 10, 5).op("aten::add_", at + dur - 9, 2)


def test_passes_and_batches_tell_steps_apart(tmp_path: Path) -> None:
    # 3 steps of one pass over 16 rows (100, 110, 120), 2 of two passes (150, 130), one over 32 rows.
    drawing = Drawing()
    at = 0
    for step, (passes, rows, dur) in enumerate(
        [(1, 16, 100), (2, 16, 150), (1, 16, 110), (1, 32, 100), (2, 16, 130), (1, 16, 120)]
    ):
        train(drawing, step, at, passes=passes, rows=rows, dur=dur)
        at += dur
    rows_found = step_classes(trace_of(drawing, tmp_path)).records()
    told = ("steps", "first_steps", "backward_passes", "batch", "optimizer", "mean_ns", "min_ns", "max_ns")
    assert [tuple(row[column] for column in told) for row in rows_found] == [
        (3, "0, 2, 5", 1, "[16, 8]", True, 110_000.0, 100_000, 120_000),
        (2, "1, 4", 2, "[16, 8]", True, 140_000.0, 130_000, 150_000),
        (1, "3", 1, "[32, 8]", True, 100_000.0, 100_000, 100_000),
    ]
    assert rows_found[0]["deviation_ns"] == stdev([100_000, 110_000, 120_000])
    assert rows_found[0]["variation_share"] == pytest.approx(1 / 11)
    assert rows_found[2]["deviation_ns"] is None
    assert [row["step_class"] for row in rows_found] == [0, 1, 2]


def test_backward_on_the_thread_of_the_step(tmp_path: Path) -> None:
    # Without a device autograd has no worker: the nodes are outermost on the step's own thread.
    drawing = Drawing()
    train(drawing, 0, 0, passes=3, worker=1)
    assert step_classes(trace_of(drawing, tmp_path)).records()[0]["backward_passes"] == 3


def test_recomputation_is_no_forward_pass(tmp_path: Path) -> None:
    # Operators inside a node of autograd come between nodes, but are not outermost.
    drawing = Drawing().mark(0, 0, 100)
    linear(drawing, 1, 16)
    for at in (10, 30, 50):
        drawing.op(BACKWARD, at, 15)
        linear(drawing, at + 2, 99)
    row = step_classes(trace_of(drawing, tmp_path)).records()[0]
    assert (row["backward_passes"], row["batch"], row["optimizer"]) == (1, "[16, 8]", False)


def batch_of(folder: Path, *ops: tuple[str, list[list[int]]]) -> str | None:
    """The batch that a step of some operators, 10 apart, is taken to have."""
    drawing = Drawing().mark(0, 0, 1000)
    for place, (name, dims) in enumerate(ops):
        args = {"Input Dims": dims, "Input type": ["float"] * len(dims)}
        drawing.op(name, place * 10, 5, args=args)
    batch: str | None = step_classes(trace_of(drawing, folder)).records()[0]["batch"]
    return batch


def test_what_enters_the_model(tmp_path: Path) -> None:
    embedding = ("aten::embedding", [[1000, 64], [4, 128]])
    convolution = ("aten::conv2d", [[32, 3, 224, 224], [64, 3, 7, 7]])
    transposed = ("aten::transpose", [[32, 128, 512], [], []])
    product = ("aten::linear", [[128, 32, 512], [1536, 512]])
    cases: list[tuple[list[tuple[str, list[list[int]]]], str | None]] = [
        ([product, convolution, embedding], "[4, 128]"),
        ([product, convolution], "[32, 3, 224, 224]"),
        ([transposed, product], "[32, 128, 512]"),
        # what makes, clears or indexes a tensor, and what has no rows, is passed over
        ([("aten::zero_", [[7, 7]]), ("aten::index", [[50000, 8], [64]]), product], "[128, 32, 512]"),
        ([("aten::add", [[9]]), ("aten::mul", [[]]), product], "[128, 32, 512]"),
        ([("aten::mul", [[]])], None),
    ]
    for number, (ops, batch) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert batch_of(folder, *ops) == batch, number


def test_data_loading_and_clearing_gradients_are_not_the_model(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 100)
    drawing.annotation("enumerate(DataLoader)#_SingleProcess.__next__", 0, 20)
    linear(drawing, 5, 999)
    drawing.annotation("Optimizer.zero_grad#SGD.zero_grad", 20, 20)
    linear(drawing, 25, 998)
    linear(drawing, 50, 16)
    assert step_classes(trace_of(drawing, tmp_path)).records()[0]["batch"] == "[16, 8]"


def launching(counts: list[int], *, graphs: tuple[int, ...] = ()) -> Drawing:
    """Steps with so many kernels each, some of them replayed."""
    drawing = Drawing()
    for step, kernels in enumerate(counts):
        drawing.mark(step, step * 1000, 900)
        call = "cudaGraphLaunch" if step in graphs else "cudaLaunchKernel"
        for number in range(kernels):
            at, correlation = step * 1000 + 2 * number, step * 1000 + number
            drawing.launch(call, at, 1, corr=correlation).kernel("k", at + 1, 1, corr=correlation)
    return drawing


def test_a_few_kernels_more_or_less(tmp_path: Path) -> None:
    # 100 to 105 are within 5 % of the fewest; 106 is not.
    trace = trace_of(launching([100, 105, 106, 102, 100]), tmp_path)
    rows = step_classes(trace).records()
    assert [(row["steps"], row["kernels_min"], row["kernels_max"]) for row in rows] == [
        (4, 100, 105),
        (1, 106, 106),
    ]
    rows = step_classes(trace, kernel_tolerance=0.0).records()
    assert [(row["steps"], row["kernels_min"]) for row in rows] == [(2, 100), (1, 105), (1, 106), (1, 102)]


def test_replayed_graphs_and_eager_steps_are_not_alike(tmp_path: Path) -> None:
    rows = step_classes(trace_of(launching([10] * 5, graphs=(1, 3)), tmp_path)).records()
    assert [(row["launched_by"], row["first_steps"]) for row in rows] == [
        ("eager", "0, 2, 4"),
        ("graph", "1, 3"),
    ]


def test_serving_is_sorted_by_kind_and_load(tmp_path: Path) -> None:
    drawing = Drawing()
    names = [
        "step[EXTEND bs=1 toks=100]",
        "step[DECODE bs=4]",
        "step[EXTEND bs=3 toks=128]",
        "step[DECODE bs=4]",
    ]
    for number, name in enumerate(
        [*names, "step[DECODE bs=4]", "step[DECODE bs=3]", "step[EXTEND bs=1 toks=129]"]
    ):
        drawing.annotation(name, number * 10, 10)
    rows = step_classes(trace_of(drawing, tmp_path)).records()
    assert [(row["steps"], row["kind"], row["batch"]) for row in rows] == [
        (3, "decode", "4 requests"),
        (2, "prefill", "up to 128 tokens"),
        (1, "decode", "3 requests"),
        (1, "prefill", "up to 256 tokens"),
    ]


def test_many_steps_are_not_all_named(tmp_path: Path) -> None:
    row = step_classes(trace_of(launching([1] * 12), tmp_path)).records()[0]
    assert row["first_steps"] == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"
    assert row["first_step"] == 0


def test_every_step_has_its_class(tmp_path: Path) -> None:
    trace = trace_of(launching([10] * 13, graphs=(1, 3, 12)), tmp_path)
    rows = classed_steps(trace).records()
    assert [row["step"] for row in rows] == list(range(13))
    assert [row["step"] for row in rows if row["step_class"] == 1] == [1, 3, 12]
    for one in step_classes(trace):
        members = [row for row in rows if row["step_class"] == one.step_class]
        assert len(members) == one.steps
        assert members[0]["step"] == one.first_step
        assert max(row["dur_ns"] for row in members) == one.max_ns


def test_the_tolerance_of_kernels_makes_the_classes_of_steps(tmp_path: Path) -> None:
    trace = trace_of(launching([100, 105, 106, 102, 100]), tmp_path)
    assert [row.step_class for row in classed_steps(trace)] == [0, 0, 1, 0, 0]
    assert [row.step_class for row in classed_steps(trace, kernel_tolerance=0.0)] == [0, 1, 2, 3, 0]


def accumulate(torch: Any, file: Path, plan: list[tuple[int, int]]) -> None:
    """Records steps of (micro-steps, batch) with torch on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        for number, (passes, batch) in enumerate(plan):
            if number:
                profile.step()
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.randn(batch, 8)).sum().backward()
            optimizer.step()
    profile.export_chrome_trace(str(file))


def test_gradient_accumulation_recorded_by_torch(torch: Any, tmp_path: Path) -> None:
    plan = [(1, 4), (3, 4), (1, 4), (3, 4), (1, 4), (1, 6)]
    accumulate(torch, tmp_path / "now.json", plan)
    rows = step_classes(stepscope.open(tmp_path / "now.json", store=tmp_path / "store")).records()
    assert [(row["steps"], row["backward_passes"], row["batch"], row["optimizer"]) for row in rows] == [
        (3, 1, "[4, 8]", True),
        (2, 3, "[4, 8]", True),
        (1, 1, "[6, 8]", True),
    ]


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_sample(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    """Every step is in one class, and the classes' times are those of their steps."""
    trace = open_shared(sample(name))
    rows, steps = step_classes(trace).records(), list(iterations(trace))
    assert sum(row["steps"] for row in rows) == len(steps)
    assert sum(row["steps"] * row["mean_ns"] for row in rows) == pytest.approx(
        sum(one.dur_ns for one in steps)
    )
    assert [row["steps"] for row in rows] == sorted((row["steps"] for row in rows), reverse=True)
    for row in rows:
        assert row["min_ns"] <= row["mean_ns"] <= row["max_ns"]
