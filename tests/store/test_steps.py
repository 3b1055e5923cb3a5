"""Steps of traces with marks and without: where they begin and end, and what they were found by."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared

from stepscope.opening import open_trace
from stepscope.store.trace import Trace

Found = list[tuple[Any, ...]]
"""Name, start and end in µs."""

BASE_NS = 10**15


def steps_of(path: Path, store: Path) -> list[dict[str, Any]]:
    return rows_of(open_trace(path, store=store))


def rows_of(trace: Trace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = trace.arrow("SELECT * FROM steps").to_pylist()
    rows.sort(key=lambda row: (row["start_ns"], row["end_ns"], row["host_start_ns"]))
    return rows


def found(drawing: Drawing, folder: Path) -> tuple[str | None, Found]:
    """How the steps of a drawing were found, and which they are; their numbers and order are checked."""
    drawing.base_ns = BASE_NS
    rows = steps_of(drawing.write(folder / "drawn.json"), folder / "store")
    sources = {row["source"] for row in rows}
    assert len(sources) <= 1
    if sources != {"mark"}:
        assert [row["step"] for row in rows] == list(range(len(rows)))
    for before, after in pairwise(rows):
        assert before["end_ns"] <= after["start_ns"]
    times = [
        (row["name"], Decimal(row["start_ns"] - BASE_NS) / 1000, Decimal(row["end_ns"] - BASE_NS) / 1000)
        for row in rows
    ]
    return (sources.pop() if sources else None), times


def work(drawing: Drawing, launch: int, start: int, dur: int, name: str = "k", **more: Any) -> None:
    """A launch of 1 and its kernel, on thread 1 and stream 7 unless said otherwise."""
    correlation = len(drawing.events) + 1
    drawing.launch("cudaLaunchKernel", launch, 1, corr=correlation, thread=more.pop("thread", 1))
    drawing.kernel(name, start, dur, corr=correlation, **more)


# ---------------------------------------------------------------- marks


def test_all_columns_of_a_mark(tmp_path: Path) -> None:
    # Mark 5-15 on thread 2; its kernel runs 8-28.
    drawing = Drawing(base_ns=BASE_NS).op("aten::mm", 0, 1).mark(41, 5, 10, thread=2)
    work(drawing, 6, 8, 20)
    rows = steps_of(drawing.write(tmp_path / "drawn.json"), tmp_path / "store")
    threads = {row.pop("thread") for row in rows}
    assert len(threads) == 1
    assert rows == [
        {
            "step": 41,
            "name": "ProfilerStep#41",
            "source": "mark",
            "start_ns": BASE_NS + 5_000,
            "end_ns": BASE_NS + 28_000,
            "host_start_ns": BASE_NS + 5_000,
            "host_end_ns": BASE_NS + 15_000,
            "pid": "100",
            "tid": "2",
        }
    ]


def test_marks_come_before_everything_else(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    for start in (0, 20, 40, 60):
        drawing.annotation(f"iteration {start}", start, 20)
        drawing.annotation("Optimizer.step#SGD.step", start + 10, 5)
        work(drawing, start + 2, start + 4, 2)
    assert found(drawing, tmp_path) == ("mark", [("ProfilerStep#1", 0, 100)])


def test_the_first_step_starts_when_unrecorded_work_is_done(tmp_path: Path) -> None:
    # Launched at 12 and 14, but the stream is busy until 5,000 with work that is not in the file.
    drawing = Drawing().mark(1, 10, 100).mark(2, 110, 100)
    work(drawing, 12, 5_000, 20)
    work(drawing, 14, 5_020, 20)
    work(drawing, 120, 5_040, 30)
    assert found(drawing, tmp_path) == (
        "mark",
        [("ProfilerStep#1", 5_000, 5_040), ("ProfilerStep#2", 5_040, 5_070)],
    )


def test_work_that_follows_its_launch_or_recorded_work_was_not_held(tmp_path: Path) -> None:
    # A launch of 3 ms, as when a module is loaded; then a second stream that waits for the first one.
    drawing = Drawing().mark(1, 10, 4_000)
    drawing.launch("cudaLaunchKernel", 12, 3_000, corr=1).kernel("a", 3_020, 4_000, corr=1, stream=7)
    drawing.launch("cudaLaunchKernel", 3_100, 1, corr=2).kernel("b", 7_030, 10, corr=2, stream=8)
    assert found(drawing, tmp_path) == ("mark", [("ProfilerStep#1", 10, 7_040)])


def test_a_mark_with_an_enormous_number(tmp_path: Path) -> None:
    drawing = Drawing().annotation("ProfilerStep#" + "9" * 30, 0, 5)
    rows = steps_of(drawing.write(tmp_path / "drawn.json"), tmp_path / "store")
    assert [row["step"] for row in rows] == [2**63 - 1]


# ---------------------------------------------------------------- annotations


def test_a_range_that_repeats_is_a_mark(tmp_path: Path) -> None:
    # Ranges 0-10, 20-30, 40-50; kernels run 5-25, 25-35, 45-65. The second starts when the first has ended.
    drawing = Drawing()
    for number, (start, dur) in enumerate([(5, 20), (25, 10), (45, 20)]):
        drawing.annotation(f"iteration {number}", number * 20, 10)
        work(drawing, number * 20 + 1, start, dur)
    expected = [("iteration 0", 0, 25), ("iteration 1", 25, 35), ("iteration 2", 40, 65)]
    assert found(drawing, tmp_path) == ("annotation", expected)


def loop(name: str = "train", *, times: int = 3, outside: int = 0, **more: Any) -> Drawing:
    """A range of 10 every 20, with a kernel of 4 in it, and so much device time outside all."""
    drawing = Drawing()
    for number in range(times):
        drawing.annotation(name, number * 20, 10, **more)
        work(drawing, number * 20 + 1, number * 20 + 2, 4)
    if outside:
        work(drawing, times * 20, times * 20 + 1, outside, name="other")
    return drawing


def test_three_times_and_most_of_the_work_are_asked_for(tmp_path: Path) -> None:
    # Of 15 µs of device time 12 are inside: 80 %. With one more outside it is less.
    for number, (drawing, source) in enumerate(
        [(loop(outside=3), "annotation"), (loop(outside=4), "trace"), (loop(times=2), "trace")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert found(drawing, folder)[0] == source, number


@pytest.mark.parametrize(
    "name",
    [
        "Optimizer.zero_grad#SGD.zero_grad",
        "nccl:all_reduce",
        "Torch-Compiled Region: 0/0",
        "layer 3",
        "microbatch",
    ],
)
def test_ranges_of_libraries_and_parts_of_a_step_are_no_steps(name: str, tmp_path: Path) -> None:
    assert found(loop(name), tmp_path)[0] == "trace"


def test_a_range_that_overlaps_itself_is_no_step(tmp_path: Path) -> None:
    drawing = loop()
    drawing.annotation("train", 5, 20)
    assert found(drawing, tmp_path)[0] == "trace"


def test_of_ranges_in_one_another_the_outermost_is_the_step(tmp_path: Path) -> None:
    drawing = Drawing()
    for start in (0, 100, 200):
        drawing.annotation("step", start, 50)
        for inner in (0, 20):
            drawing.annotation("attempt", start + inner, 18)
            work(drawing, start + inner + 1, start + inner + 2, 4)
    assert found(drawing, tmp_path) == ("annotation", [("step", at, at + 50) for at in (0, 100, 200)])


def test_without_a_device_operators_are_weighed(tmp_path: Path) -> None:
    drawing = Drawing()
    for start in (0, 20, 40):
        drawing.annotation("step", start, 10).op("aten::mm", start + 1, 8)
    drawing.op("aten::add", 60, 1).op("elsewhere", 0, 1000, thread=2)
    assert found(drawing, tmp_path) == ("annotation", [("step", at, at + 10) for at in (0, 20, 40)])


def test_device_copies_of_ranges_are_not_ranges(tmp_path: Path) -> None:
    assert found(loop(cat="gpu_user_annotation", pid=0, thread=7), tmp_path)[0] == "trace"


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_1(888_788544)_generation_0(0)",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
        "execute_new_1_cached_0",
        "step[DECODE bs=4]",
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
        "decode[bs=117/128 tok=117 d=117]",
    ],
)
def test_the_name_of_an_iteration_is_believed_even_once(name: str, tmp_path: Path) -> None:
    # The work launched outside would be too much for any other range.
    assert found(loop(name, times=1, outside=50), tmp_path) == ("annotation", [(name, 0, 10)])


def test_iterations_of_several_kinds_and_in_one_another(tmp_path: Path) -> None:
    # The draft runs inside the second iteration; another thread has a few as well.
    drawing = Drawing().annotation("step[EXTEND bs=2 toks=100]", 0, 30)
    drawing.annotation("step[TARGET_VERIFY bs=2]", 30, 20).annotation("step[DRAFT_EXTEND bs=2]", 35, 10)
    drawing.annotation("step[DECODE bs=1]", 0, 5, thread=2)
    expected = [("step[EXTEND bs=2 toks=100]", 0, 30), ("step[TARGET_VERIFY bs=2]", 30, 50)]
    assert found(drawing, tmp_path) == ("annotation", expected)


def test_iterations_that_only_the_device_has(tmp_path: Path) -> None:
    # Copies on two streams; what overlaps is the first one's. No launch moves them.
    drawing = Drawing()
    place: dict[str, Any] = {"cat": "gpu_user_annotation", "pid": 0}
    drawing.annotation("step[DECODE bs=4]", 0, 30, thread=7, **place)
    drawing.annotation("step[DECODE bs=4]", 2, 10, thread=8, **place)
    drawing.annotation("step[DECODE bs=3]", 28, 12, thread=7, **place)
    drawing.kernel("k", 1, 5).kernel("k", 33, 5)
    expected = [("step[DECODE bs=4]", 0, 30), ("step[DECODE bs=3]", 30, 40)]
    assert found(drawing, tmp_path) == ("annotation", expected)


# ---------------------------------------------------------------- optimizer


def test_a_step_runs_from_optimizer_to_optimizer(tmp_path: Path) -> None:
    # First operator at 2. Optimizers end at 25 and 55; the kernel of the first runs 24-30, so the second step
    # begins at 30; what comes after 55 belongs to none.
    drawing = Drawing().op("aten::linear", 2, 3)
    for at in (0, 30):
        drawing.op("autograd::engine::evaluate_function: AddBackward0", at + 10, 5)
        drawing.annotation("Optimizer.step#Adam.step", at + 20, 5)
        work(drawing, at + 22, at + 24, 6)
    drawing.op("aten::linear", 60, 30)
    name = "Optimizer.step#Adam.step"
    assert found(drawing, tmp_path) == ("optimizer", [(name, 2, 30), (name, 30, 60)])


def train(calls: list[tuple[str, bool]]) -> Drawing:
    """Calls of optimizers, 10 apart and 2 long, each after a backward pass or not."""
    drawing = Drawing()
    for number, (optimizer, after_backward) in enumerate(calls):
        at = number * 10
        if after_backward:
            drawing.op("autograd::engine::evaluate_function: AddBackward0", at + 2, 2)
        drawing.annotation(f"Optimizer.step#{optimizer}.step", at + 6, 2).op("aten::add_", at + 6, 1)
    return drawing


def test_of_optimizers_used_in_turn_the_one_used_least(tmp_path: Path) -> None:
    # Twice the critic, once the generator: three steps that end with the generator's, at 28, 58, 88.
    drawing = train([("Critic", True), ("Critic", True), ("Generator", True)] * 3)
    name = "Optimizer.step#Generator.step"
    assert found(drawing, tmp_path) == ("optimizer", [(name, 2, 28), (name, 28, 58), (name, 58, 88)])


def test_an_optimizer_used_once_is_not_the_step(tmp_path: Path) -> None:
    drawing = train([("LBFGS", True), *[("Adam", True)] * 4])
    assert [end for _, _, end in found(drawing, tmp_path)[1]] == [18, 28, 38, 48]


def test_optimizers_without_a_backward_pass_between_them_end_one_step(tmp_path: Path) -> None:
    drawing = train([("Adam", True), ("Adam", False)] * 3)
    assert [end for _, _, end in found(drawing, tmp_path)[1]] == [18, 38, 58]


def test_optimizers_of_old_versions_are_operators(tmp_path: Path) -> None:
    drawing = Drawing().op("aten::linear", 0, 3).op("Optimizer.step#SGD.step", 10, 5)
    drawing.annotation("Optimizer.step#SGD.step", 12, 50, cat="gpu_user_annotation", pid=0, thread=7)
    assert found(drawing, tmp_path) == ("optimizer", [("Optimizer.step#SGD.step", 0, 15)])


# ---------------------------------------------------------------- graphs


def replay(drawing: Drawing, at: int, graph: int | None, *, kernels: int = 3, eager: int = 0) -> None:
    """A graph launched at an instant, its kernels of 2 each, and afterwards so much eager device time."""
    correlation = len(drawing.events) + 1
    drawing.launch("cudaGraphLaunch", at, 2, corr=correlation)
    for number in range(kernels):
        drawing.kernel(f"k{number}", at + 4 + 2 * number, 2, corr=correlation, args={"graph id": graph})
    if eager:
        work(drawing, at + 12, at + 14, eager, name=f"sample {at}")


def test_a_step_runs_from_launch_to_launch_of_a_graph(tmp_path: Path) -> None:
    # Launched at 0, 30, 60; eager work at 12, 42, 72 until 16, 46, 76. The last step ends with that work: the
    # last call ends at 73, which is less than the longest step (30) after 60.
    drawing = Drawing()
    for at in (0, 30, 60):
        replay(drawing, at, 5, eager=2)
    assert found(drawing, tmp_path) == ("graph", [(None, 0, 30), (None, 30, 60), (None, 60, 76)])


def test_what_comes_long_after_the_last_graph_is_in_no_step(tmp_path: Path) -> None:
    drawing = Drawing()
    for at in (0, 30, 60):
        replay(drawing, at, 5)
    work(drawing, 300, 301, 2)
    assert found(drawing, tmp_path)[1][-1] == (None, 60, 90)


def test_several_graphs_in_a_step(tmp_path: Path) -> None:
    # Graph 5 (6 µs) and graph 6 (4 µs) in turn, as in piecewise capture: the longer one tells.
    drawing = Drawing()
    for at in (0, 30, 60, 90):
        replay(drawing, at, 5)
        replay(drawing, at + 12, 6, kernels=2)
    starts = [start for _, start, _ in found(drawing, tmp_path)[1]]
    assert starts == [0, 30, 60, 90]


def test_graphs_in_no_order_are_no_steps(tmp_path: Path) -> None:
    drawing = Drawing()
    for number, graph in enumerate([5, 6, 5, 6, 6, 6, 5, 5]):
        replay(drawing, number * 20, graph, kernels=graph)
    assert found(drawing, tmp_path)[0] == "trace"


def test_graphs_that_hold_little_are_no_steps(tmp_path: Path) -> None:
    drawing = Drawing()
    for at in (0, 30, 60):
        replay(drawing, at, 5, eager=7)
    assert found(drawing, tmp_path)[0] == "trace"


def test_without_numbers_graphs_are_told_by_their_size(tmp_path: Path) -> None:
    drawing = Drawing()
    for at in (0, 30, 60):
        replay(drawing, at, None, kernels=4)
        replay(drawing, at + 15, None, kernels=1)
    assert [start for _, start, _ in found(drawing, tmp_path)[1]] == [0, 30, 60]


# ---------------------------------------------------------------- periods


def kernels(names: str, *, linked: bool = True, every: dict[int, int] | None = None) -> Drawing:
    """Kernels of 2, 4 apart, launched 1 before; before some places a longer wait."""
    drawing = Drawing()
    at = 10
    for place, name in enumerate(names):
        at += (every or {}).get(place, 0)
        if linked:
            work(drawing, at - 1, at, 2, name=name)
        else:
            drawing.kernel(name, at, 2)
        at += 4
    return drawing


STEP = "abcdefgh"


def test_kernels_that_come_in_the_same_order(tmp_path: Path) -> None:
    # A step is 8 kernels, 32 µs; the profile holds three and nothing else. Launches at 9, 41, 73; the last
    # kernel runs 102-104.
    steps = [(None, 9, 41), (None, 41, 73), (None, 73, 104)]
    assert found(kernels(STEP * 3), tmp_path) == ("period", steps)


def test_the_boundary_is_where_the_wait_is_longest(tmp_path: Path) -> None:
    # Cut in the middle of a step: d e f g h | a b c d ... The wait before each `a` is 50. Whole steps begin
    # at the kernels 5 and 13; the last `a` (21) is followed by three kernels only.
    names = "defgh" + STEP * 2 + "abcd"
    drawing = kernels(names, every={5: 50, 13: 50, 21: 50})
    first = 10 + 5 * 4 + 50 - 1
    assert found(drawing, tmp_path) == (
        "period",
        [(None, first, first + 82), (None, first + 82, first + 164)],
    )


def test_without_launches_steps_lie_on_the_device(tmp_path: Path) -> None:
    steps = [(None, 10, 42), (None, 42, 74), (None, 74, 104)]
    assert found(kernels(STEP * 3, linked=False), tmp_path) == ("period", steps)


@pytest.mark.parametrize(
    "names",
    [
        STEP * 2,  # twice
        "abcdefg" * 3,  # too short for a step
        STEP * 3 + "uvwxyzu",  # 77 % of the kernels
        STEP + "x" + STEP + "y" + STEP,  # never without a break
        "x" + STEP * 4 + "y",  # layers between an embedding and a head
    ],
)
def test_what_is_no_period(names: str, tmp_path: Path) -> None:
    assert found(kernels(names), tmp_path)[0] == "trace"


def test_strange_kernels_on_one_side_are_a_warm_up(tmp_path: Path) -> None:
    assert found(kernels("x" + STEP * 4), tmp_path)[0] == "period"


def test_operators_repeat_where_their_kernels_change(tmp_path: Path) -> None:
    # A product of other sizes has another kernel, as in decoding; the operators are the same in every step.
    drawing = Drawing()
    for place in range(24):
        drawing.op(f"op {place % 8}", place * 4, 3)
        work(drawing, place * 4 + 1, place * 4 + 2, 2, name=f"k{place % 8} {place // 8}")
    assert found(drawing, tmp_path) == ("period", [(None, 1, 33), (None, 33, 65), (None, 65, 96)])


# ---------------------------------------------------------------- nothing


def test_the_whole_trace_is_one_step(tmp_path: Path) -> None:
    # From the unlinked kernel (3) to the end of the operator (90): work under way is in the whole as well.
    drawing = Drawing().kernel("early", 3, 5, corr=9).op("aten::mm", 10, 80)
    work(drawing, 12, 14, 20)
    drawing.frame("main.py(1): <module>", 0, 500)
    assert found(drawing, tmp_path) == ("trace", [(None, 3, 90)])


def test_frames_alone_are_a_trace(tmp_path: Path) -> None:
    assert found(Drawing().frame("main.py(1): <module>", 2, 50), tmp_path) == ("trace", [(None, 2, 52)])


def test_metadata_alone_is_a_trace_without_length(tmp_path: Path) -> None:
    assert found(Drawing().named_thread("main"), tmp_path) == ("trace", [(None, 0, 0)])


def test_instants_alone_are_a_trace(tmp_path: Path) -> None:
    drawing = Drawing().memory(3, 512).memory(9, -512)
    assert found(drawing, tmp_path) == ("trace", [(None, 3, 9)])


def test_no_events_no_steps(tmp_path: Path) -> None:
    assert found(Drawing(), tmp_path) == (None, [])


# ---------------------------------------------------------------- real profiles

# Without their marks, these give as many steps as they have marks.
AS_MANY = {
    "h200_compile_default.pt.trace.json.gz": "period",
    "h200_cuda_graph.pt.trace.json.gz": "graph",
    "h200_ddp_gloo_rank0.pt.trace.json.gz": "optimizer",
    "h200_mem_timeline.pt.trace.json.gz": "optimizer",
    "h200_prefetch_serial.pt.trace.json.gz": "period",
    "h200_resnet50.pt.trace.json.gz": "optimizer",
    "h200_slow_item.pt.trace.json.gz": "period",
    "h200_tutorial_baseline.pt.trace.json.gz": "period",
    "hta_nccl_data.json.gz": "optimizer",
    "hta_ns_resolution.json.gz": "optimizer",
    "hta_sampled_rank-0.json.gz": "optimizer",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", AS_MANY)
def test_a_real_profile_without_its_marks(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    marked = rows_of(open_shared(sample(name)))
    root = json.loads(gzip.decompress(sample(name).read_bytes()))
    root["traceEvents"] = [
        event for event in root["traceEvents"] if not str(event.get("name")).startswith("ProfilerStep#")
    ]
    (tmp_path / "unmarked.json").write_text(json.dumps(root))
    unmarked = steps_of(tmp_path / "unmarked.json", tmp_path / "unmarked")
    assert {row["source"] for row in marked} == {"mark"}
    assert [row["source"] for row in unmarked] == [AS_MANY[name]] * len(marked)
    # The boundaries lie elsewhere in the step, but a loop takes as long from any point on; only the first
    # step is cut by the start of the profile.
    first = 1 if len(marked) > 2 else 0
    whole, other = (steps[-1]["start_ns"] - steps[first]["start_ns"] for steps in (marked, unmarked))
    assert abs(whole - other) < 0.05 * whole
