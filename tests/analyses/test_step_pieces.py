"""Own time of a rank between collectives, by cause, and where it waited: every instant exactly once."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawing import Drawing
from tests.rank_files import BASE, opened_with, pause, rank_document
from tests.samples import open_shared
from tests.trying import tries

import stepscope
from stepscope.analyses._own_causes import CAUSES
from stepscope.analyses.collective_calls import collective_calls
from stepscope.analyses.exposed_parts import ExposedPart, exposed_parts
from stepscope.analyses.step_pieces import StepPiece, step_pieces
from stepscope.analyses.steps import steps
from stepscope.analyses.work_shapes import WorkShape, work_shapes
from stepscope.store.trace import Trace

NCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def opened(drawing: Drawing, folder: Path) -> Trace:
    folder.mkdir(exist_ok=True)
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def piece(step: int, start_us: int, dur_us: int, kernels: int = 0, **causes_us: int) -> StepPiece:
    causes = {f"{cause}_ns": 1000 * causes_us.get(cause, 0) for cause in CAUSES}
    return StepPiece(step=step, start_ns=1000 * start_us, dur_ns=1000 * dur_us, kernels=kernels, **causes)


def part(step: int, call: int, start_us: int, dur_us: int) -> ExposedPart:
    return ExposedPart(step, call, 1000 * start_us, 1000 * dur_us)


def causes_of(trace: Trace) -> dict[str, int]:
    """The causes of all pieces together, in µs."""
    rows = list(step_pieces(trace))
    summed = {cause: sum(getattr(row, f"{cause}_ns") for row in rows) // 1000 for cause in CAUSES}
    return {cause: time for cause, time in summed.items() if time}


def test_pieces_end_at_arrivals_and_begin_after_exposed_parts(tmp_path: Path) -> None:
    drawing = Drawing().mark(7, 0, 100)
    drawing.kernel("gemm", 0, 30).kernel(NCCL, 20, 30, stream=9).kernel("adam", 60, 40)
    trace = opened(drawing, tmp_path)
    assert list(exposed_parts(trace)) == [part(7, 0, 30, 20)]
    assert list(step_pieces(trace)) == [
        piece(7, 0, 20, 1, compute=20),
        piece(7, 20, 10, compute=10),
        piece(7, 50, 50, 1, compute=40, host=10),
    ]


def test_of_several_at_once_the_last_to_end_is_waited_for(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).kernel("gemm", 0, 10)
    for stream, start, end in ((8, 10, 40), (9, 20, 60), (10, 25, 30), (8, 70, 80), (9, 70, 75)):
        drawing.kernel(NCCL, start, end - start, stream=stream)
    trace = opened(drawing, tmp_path)
    assert list(exposed_parts(trace)) == [part(1, 0, 10, 10), part(1, 1, 20, 40), part(1, 4, 70, 10)]
    assert [(one.call, one.exposed_ns) for one in collective_calls(trace)] == [
        (0, 10_000), (1, 40_000), (2, 0), (3, 0), (4, 10_000),
    ]  # fmt: skip


def test_arrivals_of_later_collectives_do_not_cut_exposed_time(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 50).kernel("gemm", 0, 10).kernel("gemm", 40, 10)
    drawing.kernel(NCCL, 10, 30, stream=8).kernel(NCCL, 20, 10, stream=9)
    trace = opened(drawing, tmp_path)
    assert list(exposed_parts(trace)) == [part(1, 0, 10, 30)]
    assert [(row.start_ns, row.dur_ns) for row in step_pieces(trace)] == [(0, 10_000), (40_000, 10_000)]


def test_steps_cut_what_crosses_them(tmp_path: Path) -> None:
    """The collective is launched in the first step, and ends with it; another begins before the second."""
    drawing = Drawing().mark(1, 0, 50).mark(2, 60, 40)
    drawing.launch("cudaLaunchKernel", 5, 1, corr=1).kernel(NCCL, 30, 40, corr=1)
    drawing.kernel("gemm", 80, 10)
    trace = opened(drawing, tmp_path)
    assert [(row.step, row.start_ns, row.dur_ns) for row in steps(trace)] == [
        (1, 0, 70_000), (2, 70_000, 30_000),
    ]  # fmt: skip
    assert list(exposed_parts(trace)) == [part(1, 0, 30, 40)]
    found = [(row.step, row.start_ns, row.dur_ns, row.kernels) for row in step_pieces(trace)]
    assert found == [(1, 0, 30_000, 0), (2, 70_000, 30_000, 1)]


# ---------------------------------------------------------------- causes on a device


def between_kernels() -> Drawing:
    """Kernels from 0 to 10 and from 60 to 100 of a step; the second is launched at 55."""
    drawing = Drawing().mark(1, 0, 100)
    drawing.launch("cudaLaunchKernel", 0, 1, corr=1).kernel("gemm", 0, 10, corr=1)
    return drawing.launch("cudaLaunchKernel", 55, 1, corr=2).kernel("gemm", 60, 40, corr=2)


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(
    "add,expected",
    [
        (lambda one: one, {"host": 50}),
        (lambda one: one.annotation(LOADER, 15, 30), {"input": 30, "host": 20}),
        (lambda one: one.launch("cudaMalloc", 15, 20), {"memory": 20, "host": 30}),
        (lambda one: one.launch("hipMalloc", 15, 20, cat="cuda_runtime"), {"memory": 20, "host": 30}),
        (lambda one: one.launch("cudaMalloc", 15, 20, thread=77), {"host": 50}),
        (lambda one: one.launch("cudaStreamSynchronize", 2, 9), {"sync": 50}),
        (lambda one: one.launch("cudaStreamSynchronize", 2, 6), {"host": 50}),
        (lambda one: one.annotation("compile_fx (dynamo_timed)", 15, 20), {"compiling": 20, "host": 30}),
        (lambda one: one.memcpy("Memcpy HtoD (Pinned -> Device)", 20, 10), {"copies": 10, "host": 40}),
        (lambda one: one.memset("Memset (Device)", 20, 10), {"copies": 10, "host": 40}),
        (
            lambda one: one.annotation(LOADER, 15, 30).launch("cudaStreamSynchronize", 2, 9),
            {"input": 30, "sync": 20},
        ),
    ],
)
def test_why_the_device_was_idle(
    add: Callable[[Drawing], Drawing], expected: dict[str, int], tmp_path: Path
) -> None:
    assert causes_of(opened(add(between_kernels()), tmp_path)) == {"compute": 50, **expected}


def test_what_was_launched_before_waited_on_the_device(tmp_path: Path) -> None:
    """Whatever the host did meanwhile: it was not waited for."""
    drawing = Drawing().mark(1, 0, 100).annotation(LOADER, 20, 30)
    drawing.launch("cudaLaunchKernel", 0, 1, corr=1).kernel("gemm", 0, 10, corr=1)
    drawing.launch("cudaLaunchKernel", 2, 1, corr=2).kernel("gemm", 60, 40, corr=2, stream=9)
    assert causes_of(opened(drawing, tmp_path)) == {"compute": 50, "other": 50}


def test_pauses_of_the_collector(tmp_path: Path) -> None:
    drawing = between_kernels()
    drawing.base_ns = BASE
    trace = opened_with(tmp_path, drawing, rank_document(collector_pauses=[pause(15, 25)]))
    assert causes_of(trace) == {"compute": 50, "collector": 25, "host": 25}


# ---------------------------------------------------------------- without a device


def on_host() -> Drawing:
    return Drawing().mark(1, 0, 100).meta(deviceProperties=[])


def test_a_host_waits_until_a_collective_ends(tmp_path: Path) -> None:
    """Two of them run beside operators. It waits for the first, and after a copy for the second."""
    drawing = on_host().op("aten::mm", 0, 20).op("aten::mm", 25, 15)
    drawing.annotation("gloo:all_reduce", 10, 40, thread=5).annotation("gloo:all_reduce", 22, 40, thread=6)
    drawing.op("aten::copy_", 52, 4).op("aten::add_", 70, 20)
    trace = opened(drawing, tmp_path)
    # From 20 to 25 nothing ends: the host was busy with itself.
    assert list(exposed_parts(trace)) == [part(1, 0, 40, 10), part(1, 1, 56, 6)]
    assert list(step_pieces(trace)) == [
        piece(1, 0, 10, 1, compute=10),
        piece(1, 10, 12, compute=10, host=2),
        piece(1, 22, 18, 1, compute=15, host=3),
        piece(1, 50, 6, 1, compute=4, host=2),
        piece(1, 62, 38, 1, compute=20, host=18),
    ]


def test_an_operator_that_waits_computes_nothing(tmp_path: Path) -> None:
    drawing = on_host().op("aten::mm", 0, 20).op("_c10d_functional::wait_tensor", 20, 40)
    drawing.op("autograd::node", 60, 30).op("c10d::allreduce_", 65, 10)
    drawing.annotation("gloo:all_reduce", 15, 45, thread=5)
    trace = opened(drawing, tmp_path)
    assert list(exposed_parts(trace)) == [part(1, 0, 20, 40)]
    assert causes_of(trace) == {"compute": 40, "host": 20}


def test_loaders_and_compilers_may_run_operators(tmp_path: Path) -> None:
    drawing = on_host().annotation(LOADER, 0, 40).op("aten::stack", 10, 20)
    drawing.annotation("compile_fx (dynamo_timed)", 50, 20).op("aten::mm", 55, 10).op("aten::mm", 80, 10)
    assert causes_of(opened(drawing, tmp_path)) == {"input": 40, "compiling": 20, "compute": 10, "host": 30}


# ---------------------------------------------------------------- work


def test_work_by_name_and_launch_shape(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).kernel(NCCL, 70, 10)
    for start, grid in ((0, [8, 1, 1]), (10, [8, 1, 1]), (20, [9, 1, 1]), (150, [8, 1, 1])):
        drawing.kernel("gemm", start, 5, args={"grid": grid, "block": [32, 1, 1]})
    drawing.kernel("relu", 40, 20)
    trace = opened(drawing, tmp_path)
    expected = [
        WorkShape("relu", None, 1, 20_000, 1, 20_000),
        WorkShape("gemm", "[8,1,1] [32,1,1]", 2, 10_000, 2, 10_000),
        WorkShape("gemm", "[9,1,1] [32,1,1]", 1, 5_000, 1, 5_000),
    ]
    assert list(work_shapes(trace)) == expected
    assert list(work_shapes(trace, most=1)) == expected[:1]


def test_kernels_alone_and_beside_collectives(tmp_path: Path) -> None:
    """Those that a collective covers in part are neither; two collectives in a row cover one kernel."""
    drawing = Drawing().mark(1, 0, 200)
    drawing.kernel(NCCL, 50, 20, stream=20).kernel(NCCL, 60, 40, stream=21)
    for start, long in ((0, 10), (10, 40), (45, 10), (55, 8), (65, 30), (95, 10), (100, 7)):
        drawing.kernel("gemm", start, long)
    (found,) = work_shapes(opened(drawing, tmp_path))
    assert (found.calls, found.total_ns) == (7, 115_000)
    assert (found.alone_calls, found.alone_ns) == (3, 57_000)
    assert (found.beside_calls, found.beside_ns) == (2, 38_000)


def test_operators_are_the_work_of_a_host(tmp_path: Path) -> None:
    drawing = on_host().op("aten::linear", 0, 30).op("aten::addmm", 5, 20, args={"Input Dims": [[4], [4, 4]]})
    drawing.op("c10d::allreduce_", 40, 10).op("record_param_comms", 41, 5).op("aten::mm", 60, 5, thread=9)
    assert list(work_shapes(opened(drawing, tmp_path))) == [
        WorkShape("aten::addmm", "[[4],[4,4]]", 1, 20_000),
        WorkShape("aten::linear", None, 1, 10_000),
    ]


# ---------------------------------------------------------------- what always holds


def assert_whole(trace: Trace) -> None:
    """Every instant of every step is in one piece or exposed part, and of one cause."""
    pieces, parts = list(step_pieces(trace)), list(exposed_parts(trace))
    table = {row.call: row for row in collective_calls(trace)}
    for step in steps(trace, by="any"):
        spans = [(row.start_ns, row.dur_ns) for row in pieces if row.step == step.step]
        spans += [(row.start_ns, row.dur_ns) for row in parts if row.step == step.step]
        cursor = step.start_ns
        for start, dur in sorted(spans):
            assert (start, dur > 0) == (cursor, True)
            cursor += dur
        assert cursor == step.start_ns + step.dur_ns or not step.dur_ns
    for row in pieces:
        assert sum(getattr(row, f"{cause}_ns") for cause in CAUSES) == row.dur_ns
        assert not any(row.start_ns < one.start_ns < row.start_ns + row.dur_ns for one in table.values())
    for one in parts:
        call = table[one.call]
        assert call.start_ns <= one.start_ns
        assert one.start_ns + one.dur_ns <= call.start_ns + call.dur_ns


REAL = [
    "h200_ddp_gloo_rank1.pt.trace.json.gz",
    "hta_cpu_only.json.gz",
    "hta_nccl_data.json.gz",
    "h200_prefetch_serial.pt.trace.json.gz",
    "ranks/ddp_mi300_4/rank1.json.gz",
    "ranks/hta_rank_unavailable.json.gz",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_every_instant_of_real_profiles(sample: Callable[[str], Path], name: str) -> None:
    assert_whole(open_shared(sample(name)))


Span = tuple[int, int]
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=6)


@st.composite
def busy(draw: st.DrawFn) -> tuple[Drawing, dict[str, list[Span]]]:
    """Some steps with collectives, what the host did, and with a device or without work and copies."""
    told: dict[str, list[Span]] = {name: draw(SPANS) for name in ("gloo", "load", "op")}
    on_device = draw(st.booleans())
    told |= {name: draw(SPANS) if on_device else [] for name in ("gemm", "copy", "nccl")}
    drawing = Drawing()
    for number, start in enumerate(range(0, 90, 30)):
        drawing.mark(number, start, draw(st.integers(1, 30)))
    for place, (name, (start, dur)) in enumerate(
        (name, span) for name, spans in told.items() for span in spans
    ):
        if name in ("gemm", "nccl"):
            drawing.kernel("gemm" if name == "gemm" else NCCL, start, dur, stream=place)
        elif name == "copy":
            drawing.memcpy("Memcpy HtoD", start, dur, stream=place)
        elif name == "op":
            drawing.op("aten::mm", start, dur)
        else:
            drawing.annotation("gloo:all_reduce" if name == "gloo" else LOADER, start, dur, thread=9 + place)
    return drawing, told


def instants(spans: Iterable[Span]) -> set[int]:
    return {instant for start, dur in spans for instant in range(start, start + dur)}


@pytest.mark.slow
@settings(max_examples=tries(10, 250), deadline=None)
@given(busy())
def test_random_profiles_instant_by_instant(drawn: tuple[Drawing, dict[str, list[Span]]]) -> None:
    drawing, told = drawn
    with tempfile.TemporaryDirectory() as folder:
        trace = opened(drawing, Path(folder))
        assert_whole(trace)
        pieces, parts, windows = step_pieces(trace), exposed_parts(trace), steps(trace, by="any")
        calls = {row.call: (row.start_ns // 1000, row.dur_ns // 1000) for row in collective_calls(trace)}
    stepped = instants((row.start_ns // 1000, row.dur_ns // 1000) for row in windows)
    waited = {
        instant: row.call
        for row in parts
        for instant in instants([(row.start_ns // 1000, row.dur_ns // 1000)])
    }
    talking, ops = instants([*told["nccl"], *told["gloo"]]), instants(told["op"])
    computing, copying = instants(told["gemm"]), instants(told["copy"])
    if told["gemm"] or told["copy"] or told["nccl"]:
        assert set(waited) == (talking - computing - copying) & stepped
        assert sum(row.compute_ns for row in pieces) == 1000 * len(computing & stepped)
        assert sum(row.copies_ns for row in pieces) == 1000 * len((copying - computing) & stepped)
        for instant, call in waited.items():
            open_ones = [one for one in calls.values() if instant in instants([one])]
            assert sum(calls[call]) == max(sum(one) for one in open_ones)
        return
    # Without a device: what is waited for is open, no operator runs, and after the pause it ends soon.
    assert set(waited) <= (talking - ops) & stepped
    for instant, call in waited.items():
        start, end = calls[call][0], sum(calls[call])
        assert start <= instant < end
        since = next((before + 1 for before in range(instant, -1, -1) if before in ops), -1000)
        until = next((later for later in range(instant, 200) if later in ops), 1000)
        assert end <= until + (until - max(start, since)) // 2
