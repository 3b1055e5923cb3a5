"""The path that determined a step's length, on drawn profiles worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope import _native
from stepscope.analyses.critical_path import PathPart, critical_path
from stepscope.errors import StepscopeError
from stepscope.simulation.dependencies import dependencies
from stepscope.store.trace import Trace

Piece = tuple[str, str | None, float, float]
"""Kind, name, start and end in µs."""

NOTHING, OP, CALL = "nothing recorded", "host op", "other runtime call"
LAUNCH = "cudaLaunchKernel"


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def pieces(drawing: Drawing, folder: Path, **options: Any) -> list[Piece]:
    """The path of the first step, in order of time."""
    rows = critical_path(opened(drawing, folder), segments=10_000, **options)
    return [(row.kind, row.name, start(row) / 1000, (start(row) + row.path_ns) / 1000) for row in rows]


def start(row: PathPart) -> int:
    assert row.start_ns is not None
    return row.start_ns


# ---------------------------------------------------------------- drawn by hand


def test_a_host_that_is_slower_than_the_device(tmp_path: Path) -> None:
    # Kernels are done long before the host ends: all of the path is the marks' thread.
    drawing = Drawing().mark(1, 0, 100)
    drawing.op("a", 10, 30).launch(LAUNCH, 20, 5, corr=1).kernel("k", 30, 5, corr=1)
    drawing.op("b", 60, 30).launch(LAUNCH, 70, 5, corr=2).kernel("k", 80, 5, corr=2)
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 10), (OP, "a", 10, 20), (CALL, LAUNCH, 20, 25), (OP, "a", 25, 40),
        (NOTHING, None, 40, 60), (OP, "b", 60, 70), (CALL, LAUNCH, 70, 75), (OP, "b", 75, 90),
        (NOTHING, None, 90, 100),
    ]  # fmt: skip


def test_a_device_that_is_slower_than_the_host(tmp_path: Path) -> None:
    # The second kernel was launched at 6 and waited for the first until 40; the first was launched at 2.
    drawing = Drawing().mark(1, 0, 20)
    drawing.launch(LAUNCH, 2, 2, corr=1).launch(LAUNCH, 6, 2, corr=2)
    drawing.kernel("first", 10, 30, corr=1).kernel("second", 42, 58, corr=2)
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 2), ("launch latency", LAUNCH, 2, 10), ("kernel", "first", 10, 40),
        ("device scheduling", "second", 40, 42), ("kernel", "second", 42, 100),
    ]  # fmt: skip


def test_a_call_that_waits_for_the_device(tmp_path: Path) -> None:
    # The call returns 5 after the kernel; what runs later on the device ends before the step does.
    drawing = Drawing().mark(1, 0, 90).launch(LAUNCH, 0, 2, corr=1).kernel("k", 10, 40, corr=1)
    drawing.launch("cudaStreamSynchronize", 5, 50, corr=2)
    drawing.launch(LAUNCH, 60, 2, corr=3).kernel("later", 70, 10, corr=3)
    assert pieces(drawing, tmp_path) == [
        ("launch latency", LAUNCH, 0, 10), ("kernel", "k", 10, 50),
        ("synchronising call", "cudaStreamSynchronize", 50, 55), (NOTHING, None, 55, 60),
        (CALL, LAUNCH, 60, 62), (NOTHING, None, 62, 90),
    ]  # fmt: skip


def test_a_call_that_finds_the_device_done(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 90).launch(LAUNCH, 0, 2, corr=1).kernel("k", 10, 10, corr=1)
    drawing.launch("cudaDeviceSynchronize", 40, 4, corr=2)
    assert pieces(drawing, tmp_path) == [
        (CALL, LAUNCH, 0, 2), (NOTHING, None, 2, 40), ("synchronising call", "cudaDeviceSynchronize", 40, 44),
        (NOTHING, None, 44, 90),
    ]  # fmt: skip


def waiting_stream(*, recorded: bool) -> Drawing:
    """Stream 20 waits for `a` on stream 7; with a record also a decoy ends later, on stream 21."""
    drawing = Drawing().mark(1, 0, 15).launch(LAUNCH, 0, 1, corr=1).kernel("a", 10, 40, corr=1)
    drawing.launch("cudaEventRecord", 3, 1, corr=2).launch("cudaStreamWaitEvent", 5, 1, corr=3)
    drawing.launch(LAUNCH, 8, 1, corr=4).kernel("b", 52, 28, corr=4, stream=20)
    if recorded:
        drawing.launch(LAUNCH, 2, 1, corr=5).kernel("decoy", 12, 39, corr=5, stream=21)
        wait = {"stream": 20, "wait_on_stream": 7, "correlation": 3, "wait_on_cuda_event_record_corr_id": 2}
        place = {"pid": 0, "tid": 20, "ts": 50, "dur": 1}
        drawing.add({"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", **place, "args": wait})
    return drawing


@pytest.mark.parametrize("recorded", [True, False])
def test_two_streams_and_an_event(recorded: bool, tmp_path: Path) -> None:
    assert pieces(waiting_stream(recorded=recorded), tmp_path) == [
        ("launch latency", LAUNCH, 0, 10), ("kernel", "a", 10, 50), ("device scheduling", "b", 50, 52),
        ("kernel", "b", 52, 80),
    ]  # fmt: skip


def test_the_graph_itself(tmp_path: Path) -> None:
    # Events in the order of drawing: mark 0, launch 1, a 2, record 3, wait 4, launch 5, b 6.
    drawing = waiting_stream(recorded=False).launch("cudaStreamSynchronize", 60, 25, corr=9)
    graph = dependencies(opened(drawing, tmp_path))
    columns = {name: column for name, (column, _) in graph.work_edges().items()}
    none = _native.NULL
    assert list(zip(*(list(column) for column in columns.values()), strict=True)) == [
        (2, none, none, 1, 3, 0),
        (6, none, 2, 5, 2, 50_000),
    ]
    calls = {name: list(column) for name, (column, _) in graph.call_edges().items()}
    assert calls == {"event": [7], "work": [6], "released_ns": [80_000], "for_room": [0]}


def test_a_guess_is_said(tmp_path: Path) -> None:
    for recorded in (True, False):
        folder = tmp_path / str(recorded)
        folder.mkdir()
        notes = critical_path(opened(waiting_stream(recorded=recorded), folder)).notes
        assert ("enable_cuda_sync_events" in " ".join(notes)) is not recorded


def test_work_on_another_stream_for_which_no_wait_is_recorded(tmp_path: Path) -> None:
    # `b` could have run at 6, but began just when `a` was done; `c` began when nothing else was.
    drawing = Drawing().mark(1, 0, 4).launch(LAUNCH, 0, 1, corr=1).kernel("a", 5, 95, corr=1)
    drawing.launch(LAUNCH, 2, 1, corr=2).kernel("b", 105, 45, corr=2, stream=8)
    assert pieces(drawing, tmp_path) == [
        ("launch latency", LAUNCH, 0, 5), ("kernel", "a", 5, 100), ("waited on the device", "b", 100, 105),
        ("kernel", "b", 105, 150),
    ]  # fmt: skip


def test_work_that_something_held_which_is_not_in_the_profile(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 10).launch(LAUNCH, 4, 2, corr=1).kernel("k", 500, 100, corr=1)
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 4), ("launch latency", LAUNCH, 4, 6), ("waited on the device", "k", 6, 500),
        ("kernel", "k", 500, 600),
    ]  # fmt: skip


def test_a_collective_between_kernels(tmp_path: Path) -> None:
    # Compute, all-reduce on its own stream, compute again: each waits for the one before it.
    nccl = "ncclDevKernel_AllReduce_Sum"
    drawing = Drawing().mark(1, 0, 30).launch(LAUNCH, 2, 1, corr=1).kernel("k", 5, 25, corr=1)
    drawing.launch("cudaEventRecord", 4, 1, corr=2).launch("cudaStreamWaitEvent", 6, 1, corr=3)
    drawing.launch(LAUNCH, 8, 1, corr=4).kernel(nccl, 31, 39, corr=4, stream=20)
    drawing.launch("cudaEventRecord", 10, 1, corr=5).launch("cudaStreamWaitEvent", 12, 1, corr=6)
    drawing.launch(LAUNCH, 14, 1, corr=7).kernel("after", 72, 18, corr=7)
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 2), ("launch latency", LAUNCH, 2, 5), ("kernel", "k", 5, 30),
        ("device scheduling", nccl, 30, 31), ("communication", nccl, 31, 70),
        ("device scheduling", "after", 70, 72), ("kernel", "after", 72, 90),
    ]  # fmt: skip


def test_backward_on_another_thread(tmp_path: Path) -> None:
    # The marks' thread gives the engine's thread work at 20 and goes on when that is done, at 50.
    drawing = Drawing().mark(1, 0, 100).op("forward", 0, 10).op("optimizer", 60, 20)
    drawing.op("backward", 20, 10, thread=2, args={"Fwd thread id": 1, "Sequence number": 5})
    drawing.op("backward too", 35, 15, thread=2, args={"Fwd thread id": 1, "Sequence number": 4})
    assert pieces(drawing, tmp_path) == [
        (OP, "forward", 0, 10), (NOTHING, None, 10, 20), (OP, "backward", 20, 30), (NOTHING, None, 30, 35),
        (OP, "backward too", 35, 50), (NOTHING, None, 50, 60), (OP, "optimizer", 60, 80),
        (NOTHING, None, 80, 100),
    ]  # fmt: skip


def test_a_thread_that_only_runs_beside_is_not_on_the_path(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).op("forward", 0, 10).op("optimizer", 60, 20)
    drawing.op("pin_memory", 20, 30, thread=9)
    assert pieces(drawing, tmp_path) == [
        (OP, "forward", 0, 10), (NOTHING, None, 10, 60), (OP, "optimizer", 60, 80), (NOTHING, None, 80, 100),
    ]  # fmt: skip


def test_a_collective_of_the_host(tmp_path: Path) -> None:
    # The marks' thread issues it at 40 and waits until 500; the thread that does it began at 60.
    drawing = Drawing().mark(1, 0, 600).op("c10d::allreduce_", 0, 40)
    drawing.annotation("gloo:all_reduce", 60, 440, thread=3).op("optimizer", 520, 80)
    assert pieces(drawing, tmp_path) == [
        (OP, "c10d::allreduce_", 0, 40), (NOTHING, None, 40, 60),
        ("communication", "gloo:all_reduce", 60, 500), (NOTHING, None, 500, 520), (OP, "optimizer", 520, 600),
    ]  # fmt: skip


def test_no_device_at_all(tmp_path: Path) -> None:
    # Loading covers what it calls; a range by itself is Python with a name, and so is a frame.
    drawing = Drawing().mark(1, 0, 100).frame("train.py(1): step", 5, 95)
    drawing.annotation("enumerate(DataLoader)#_Next.__next__", 10, 30).op("aten::stack", 15, 10)
    drawing.annotation("Optimizer.step#SGD.step", 60, 30).op("aten::add_", 70, 10)
    python = ("Python between ops", "train.py(1): step")
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 5), (*python, 5, 10),
        ("dataloader", "enumerate(DataLoader)#_Next.__next__", 10, 40), (*python, 40, 70),
        (OP, "aten::add_", 70, 80), (*python, 80, 100),
    ]  # fmt: skip


def test_several_devices(tmp_path: Path) -> None:
    # Device 1 ends last and was fed by itself; what device 0 did meanwhile is not on the path.
    drawing = Drawing().mark(1, 0, 10).launch(LAUNCH, 0, 1, corr=1).kernel("on 0", 3, 40, corr=1)
    drawing.launch(LAUNCH, 2, 1, corr=2).kernel("on 1", 6, 30, corr=2, device=1)
    drawing.launch(LAUNCH, 4, 1, corr=3).kernel("on 1 too", 37, 50, corr=3, device=1)
    assert pieces(drawing, tmp_path) == [
        (CALL, LAUNCH, 0, 1), (NOTHING, None, 1, 2), ("launch latency", LAUNCH, 2, 6),
        ("kernel", "on 1", 6, 36), ("device scheduling", "on 1 too", 36, 37), ("kernel", "on 1 too", 37, 87),
    ]  # fmt: skip


def test_a_graph_on_two_streams(tmp_path: Path) -> None:
    # One launch: `join` waits for the longer of two branches, which began after `fork`.
    drawing = Drawing().mark(1, 0, 6).launch("cudaGraphLaunch", 1, 4, corr=1)
    drawing.kernel("fork", 10, 10, corr=1).kernel("long", 25, 40, corr=1, stream=8).kernel(
        "short", 22, 10, corr=1
    )
    drawing.kernel("join", 70, 10, corr=1)
    assert pieces(drawing, tmp_path) == [
        (NOTHING, None, 0, 1), ("launch latency", "cudaGraphLaunch", 1, 10), ("kernel", "fork", 10, 20),
        ("graph latency", "long", 20, 25), ("kernel", "long", 25, 65), ("graph latency", "join", 65, 70),
        ("kernel", "join", 70, 80),
    ]  # fmt: skip


def test_kernels_that_overlap_by_design(tmp_path: Path) -> None:
    # The second begins while the first is about to end: each instant counts once.
    drawing = Drawing().mark(1, 0, 5).launch(LAUNCH, 0, 1, corr=1).launch(LAUNCH, 2, 1, corr=2)
    drawing.kernel("first", 6, 20, corr=1).kernel("second", 24, 16, corr=2)
    assert pieces(drawing, tmp_path) == [
        ("launch latency", LAUNCH, 0, 6), ("kernel", "first", 6, 24), ("kernel", "second", 24, 40),
    ]  # fmt: skip


def test_a_copy_of_memory_that_is_not_pinned(tmp_path: Path) -> None:
    # Its call returns when it is done; of pinned memory it would not wait.
    for kind, expected in (
        (
            "Pageable",
            [
                ("launch latency", 0, 10),
                ("memcpy", 10, 60),
                ("synchronising call", 60, 62),
                (NOTHING, 62, 90),
            ],
        ),
        ("Pinned", [(CALL, 0, 62), (NOTHING, 62, 90)]),
    ):
        folder = tmp_path / kind
        folder.mkdir()
        drawing = Drawing().mark(1, 0, 90).launch("cudaMemcpyAsync", 0, 62, corr=1)
        drawing.memcpy(f"Memcpy DtoH (Device -> {kind})", 10, 50, corr=1)
        assert [(kind, start, end) for kind, _, start, end in pieces(drawing, folder)] == expected


def test_a_launch_that_waits_for_room_in_the_queue(tmp_path: Path) -> None:
    # 1,000 launches, 1 apart; kernels of 10, one after the other from 5 on. The last launch, at 1000, is
    # behind 1,000 others of which 99 are done ((1000 - 15) / 10 + 1); it returns at 3006, just after kernel
    # 299 was done (3005). All the rest is the host: kernels end at 10,015.
    drawing = Drawing().mark(1, 0, 20_000).op("slow", 3006, 16_994)
    for number in range(1001):
        blocked = number == 1000
        drawing.launch(LAUNCH, number, 2006 if blocked else 0.5, corr=number)
        drawing.kernel("k", 5 + 10 * number, 10, corr=number)
    assert pieces(drawing, tmp_path) == [
        ("launch latency", LAUNCH, 0, 5),
        *(("kernel", "k", 5 + 10 * number, 15 + 10 * number) for number in range(300)),
        (CALL, LAUNCH, 3005, 3006),
        (OP, "slow", 3006, 20_000),
    ]


def test_launches_that_wait_for_their_kernels(tmp_path: Path) -> None:
    # With CUDA_LAUNCH_BLOCKING every call returns after its kernel, here by 1.
    drawing = Drawing().mark(1, 0, 10 * 20)
    for number in range(10):
        drawing.launch(LAUNCH, 20 * number, 15, corr=number).kernel("k", 20 * number + 4, 10, corr=number)
    table = critical_path(opened(drawing, tmp_path))
    assert {row.kind: row.path_ns for row in table} == {
        "kernel": 100_000, "launch latency": 40_000, "synchronising call": 10_000, NOTHING: 50_000,
    }  # fmt: skip


def test_short_kernels_behind_a_slow_host(tmp_path: Path) -> None:
    # Launching takes 6. Ten kernels alone show that; then twenty are launched every 5 and take 3 each: each
    # begins 2 after the one before ended and 6 after its launch: the launches are what holds them up.
    drawing = Drawing().mark(1, 0, 305)
    launches = [20 * number for number in range(10)] + [200 + 5 * number for number in range(20)]
    for number, launched in enumerate(launches):
        drawing.launch(LAUNCH, launched, 1, corr=number).kernel("k", launched + 6, 3, corr=number)
    drawing.launch(LAUNCH, 300, 1, corr=100).kernel("last", 306, 14, corr=100)
    found = pieces(drawing, tmp_path)
    assert found[-2:] == [("launch latency", LAUNCH, 300, 306), ("kernel", "last", 306, 320)]
    assert {kind for kind, *_ in found[:-2]} == {CALL, NOTHING}


def test_work_without_a_launch(tmp_path: Path) -> None:
    # Nothing says why the second began when it did; the first, only what was before.
    drawing = Drawing().kernel("first", 0, 10).kernel("second", 40, 10)
    assert pieces(drawing, tmp_path) == [
        ("kernel", "first", 0, 10), ("unknown", "second", 10, 40), ("kernel", "second", 40, 50),
    ]  # fmt: skip


def test_the_host_ran_ahead_into_the_next_step(tmp_path: Path) -> None:
    # Step 1 ends with its kernel at 100, so step 2 begins there, although its mark began at 10.
    drawing = Drawing().mark(1, 0, 10).mark(2, 10, 10)
    drawing.launch(LAUNCH, 2, 1, corr=1).kernel("one", 8, 92, corr=1)
    drawing.launch(LAUNCH, 12, 1, corr=2).kernel("two", 101, 50, corr=2)
    assert pieces(drawing, tmp_path, step=2) == [
        ("device scheduling", "two", 100, 101),
        ("kernel", "two", 101, 151),
    ]


# ---------------------------------------------------------------- tables


def test_the_tables_of_kinds_and_items(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 50).op("a", 0, 30).op("b", 30, 10)
    drawing.mark(2, 50, 50).op("a", 50, 20).op("a", 80, 20)
    trace = opened(drawing, tmp_path)
    kinds = [(row.step, row.kind, row.path_ns, row.share, row.segments) for row in critical_path(trace)]
    assert kinds == [
        (1, OP, 40_000, 0.8, 2), (1, NOTHING, 10_000, 0.2, 1),
        (2, OP, 40_000, 0.8, 2), (2, NOTHING, 10_000, 0.2, 1),
    ]  # fmt: skip
    items = [
        (row.step, row.kind, row.name, row.path_ns, row.segments) for row in critical_path(trace, items=2)
    ]
    assert items == [(None, OP, "a", 70_000, 3), (None, NOTHING, None, 20_000, 2)]
    one = [(row.step, row.name, row.path_ns) for row in critical_path(trace, items=1, step=2)]
    assert one == [(2, "a", 40_000)]
    places = {row.place for row in critical_path(trace, segments=9)}
    assert places == {"thread 1"}
    assert len(critical_path(trace, segments=1)) == 1


def test_host_events_that_do_not_fit_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ranges that stay open from one slice of time to the next.
    drawing = Drawing().mark(1, 0, 1000).frame("main", 0, 1000)
    for number in range(10):
        drawing.frame("inner", 100 * number, 90).op(f"op {number}", 100 * number + 10, 60)
        drawing.frame("innermost", 100 * number + 20, 30)
    whole = pieces(drawing, tmp_path)
    assert len(whole) == 60
    monkeypatch.setattr(sys.modules[PathPart.__module__], "SLICE", 4)
    assert pieces(drawing, tmp_path) == whole


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    trace = opened(Drawing().mark(1, 0, 50).op("a", 0, 30), tmp_path)
    with pytest.raises(StepscopeError, match="no step 7"):
        critical_path(trace, step=7)
    with pytest.raises(StepscopeError, match="cannot be combined"):
        critical_path(trace, items=1, segments=1)


def test_a_profile_of_nothing(tmp_path: Path) -> None:
    table = critical_path(opened(Drawing().named_thread("main"), tmp_path))
    assert not len(table)
    assert table.notes == ("No events: there is no step to explain.",)
