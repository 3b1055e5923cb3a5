"""Which event is the innermost."""

from __future__ import annotations

from tests.analyses.traps.rows import Drawn, call, category, device, kernel, op, trap
from tests.drawing import Drawing


@trap
def crossing_events() -> Drawn:
    # a 0..10 and b 5..15 cross: b owns 5..15, a 0..5. At 7 both are open, b is inner; at 12 only b is open.
    drawing = Drawing().op("a", 0, 10).op("b", 5, 10)
    drawing.launch("cudaLaunchKernel", 7, 1, corr=1).kernel("k", 20, 3, corr=1)
    drawing.launch("cudaLaunchKernel", 12, 1, corr=2).kernel("k", 30, 4, corr=2)
    return drawing, {
        "ops": [
            op("a", 1, (10_000, 5_000, 5_000), (0, 3_000)),
            op("b", 1, (10_000, 10_000, 8_000), (7_000, 7_000)),
        ]
    }


@trap
def three_that_cross() -> Drawn:
    # a 0..20, b 5..12, c 10..15: c owns 10..15, b 5..10; from 12 on b is over, so a gets 15..20 back, and
    # 0..5.
    drawing = Drawing().op("a", 0, 20).op("b", 5, 7).op("c", 10, 5)
    return drawing, {
        "ops": [
            op("a", 1, (20_000, 10_000, 10_000)),
            op("b", 1, (7_000, 5_000, 5_000)),
            op("c", 1, (5_000,) * 3),
        ]
    }


@trap
def an_outer_event_that_comes_back() -> Drawn:
    # b 5..8 ends inside c 6..7's crossing partner d 6..12: at 8..12 d is innermost, then a until 20.
    drawing = Drawing().op("a", 0, 20).op("b", 5, 3).op("c", 6, 1).op("d", 6, 6)
    # d is longer than c and starts with it, so it is outside c: a 0..5, b 5..6, c 6..7, d 7..12, a 12..20.
    return drawing, {
        "ops": [
            op("a", 1, (20_000, 13_000, 13_000)),
            op("b", 1, (3_000, 1_000, 1_000)),
            op("c", 1, (1_000,) * 3),
            op("d", 1, (6_000, 5_000, 5_000)),
        ]
    }


@trap
def equal_starts() -> Drawn:
    # Thread 1: the longer is outer although it comes later in the file. Thread 2: equal in start and length,
    # so the earlier in the file is outer and has nothing left. The launches at the common start go to the
    # inner ones.
    drawing = Drawing().op("short", 0, 4).op("long", 0, 10).launch("cudaLaunchKernel", 0, 1, corr=1)
    drawing.op("earlier", 0, 6, thread=2).op("later", 0, 6, thread=2)
    drawing.launch("cudaLaunchKernel", 0, 1, corr=2, thread=2)
    drawing.kernel("k", 20, 2, corr=1).kernel("k", 22, 3, corr=2)
    return drawing, {
        "ops": [
            op("short", 1, (4_000, 4_000, 3_000), (2_000, 2_000)),
            op("long", 1, (10_000, 6_000, 6_000), (0, 2_000)),
            op("earlier", 1, (6_000, 0, 0), (0, 3_000)),
            op("later", 1, (6_000, 6_000, 5_000), (3_000, 3_000)),
        ]
    }


@trap
def zero_durations() -> Drawn:
    # An op without length is never open, so the launch at its instant belongs to the op around it. A kernel
    # without length counts as a call and, by its start, in the span (10..20).
    drawing = Drawing().op("outer", 0, 10).op("nothing", 5, 0)
    drawing.launch("cudaLaunchKernel", 5, 0, corr=1).kernel("k", 16, 4, corr=1).kernel("k", 10, 0, corr=1)
    return drawing, {
        "ops": [op("outer", 1, (10_000,) * 3, (4_000, 4_000)), op("nothing", 1, (0, 0, 0))],
        "kernels": [kernel("k", [4_000, 0], 1.0)],
        "runtime_calls": [call("cudaLaunchKernel", 1, 0)],
        "devices": [device("0", 10_000, 4_000)],
    }


@trap
def nothing_but_zero_durations() -> Drawn:
    # A window without length has no shares.
    drawing = Drawing().kernel("k", 10, 0, corr=1, args={"blocks per SM": 1.0})
    return drawing, {"kernels": [kernel("k", [0], None)], "devices": [device("0", 0, 0)]}


@trap
def negative_durations() -> Drawn:
    # They count as 0: the op is never open, the kernel has no time and the span is 10..15.
    drawing = Drawing().op("broken", 5, -3).op("fine", 0, 10)
    drawing.launch("cudaLaunchKernel", 4, -1, corr=1).kernel("k", 10, 5, corr=1).kernel("k", 12, -7, corr=1)
    return drawing, {
        "categories": [
            category("cpu_op", "X", 2, 10_000),
            category("cuda_runtime", "X", 1, 0),
            category("kernel", "X", 2, 5_000),
        ],
        "kernels": [kernel("k", [5_000, 0], 1.0)],
        "ops": [op("broken", 1, (0, 0, 0)), op("fine", 1, (10_000,) * 3, (5_000, 5_000))],
        "devices": [device("0", 5_000, 5_000)],
    }


@trap
def recursion() -> Drawn:
    # f 0..10 calls g 1..9 calls f 2..6, which launches. The time of f is 10 once, its own is 2 + 4. Its
    # device time counts once. On thread 2 the same op runs at the same time: 5 more.
    drawing = Drawing().op("f", 0, 10).op("g", 1, 8).op("f", 2, 4).launch("cudaLaunchKernel", 3, 1, corr=1)
    drawing.kernel("k", 20, 7, corr=1).op("f", 0, 5, thread=2)
    return drawing, {
        "ops": [
            op("f", 3, (15_000, 11_000, 10_000), (7_000, 7_000)),
            op("g", 1, (8_000, 4_000, 4_000), (0, 7_000)),
        ]
    }


@trap
def nested_runtime_calls() -> Drawn:
    # The driver call 3..4 lies in the runtime call 2..5: the op loses 3, not 4. A call 8..12 that outlives
    # the op takes 2 of it. The table of calls has plain sums. The kernel is linked to the driver call.
    drawing = Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 2, 3, corr=1)
    drawing.launch("cuLaunchKernel", 3, 1, corr=2, cat="cuda_driver").launch("cudaFree", 8, 4, corr=3)
    drawing.kernel("k", 20, 5, corr=2).launch("cudaLaunchKernel", 3, 1, corr=4, thread=2)
    return drawing, {
        "ops": [op("aten::mm", 1, (10_000, 10_000, 5_000), (5_000, 5_000))],
        "runtime_calls": [
            call("cudaLaunchKernel", 2, 4_000),
            call("cuLaunchKernel", 1, 1_000),
            call("cudaFree", 1, 4_000),
        ],
    }


@trap
def an_op_inside_a_runtime_call() -> Drawn:
    # A call 2..8 of outer 0..10 runs a hook, inner 4..6. Neither has the call's time as its own.
    drawing = Drawing().op("outer", 0, 10).launch("cudaMalloc", 2, 6, corr=1).op("inner", 4, 2)
    return drawing, {"ops": [op("outer", 1, (10_000, 8_000, 4_000)), op("inner", 1, (2_000, 2_000, 0))]}


@trap
def frames_and_annotations_are_transparent_to_ops() -> Drawn:
    # The frame 2..8 and the annotation 3..7 lie between the ops, and the tree of ops does not see them.
    drawing = (
        Drawing().op("outer", 0, 10).frame("a.py(1): f", 2, 6).annotation("forward", 3, 4).op("inner", 4, 2)
    )
    drawing.frame("a.py(9): g", 4, 2).launch("cudaLaunchKernel", 4.5, 1, corr=1).kernel("k", 10, 1, corr=1)
    return drawing, {
        "ops": [
            op("outer", 1, (10_000, 8_000, 8_000), (0, 1_000)),
            op("inner", 1, (2_000, 2_000, 1_000), (1_000, 1_000)),
        ]
    }


@trap
def threads_of_two_processes() -> Drawn:
    # Both call their thread 1; they are two threads. Device 0, stream 7 is no thread of process 0 either.
    drawing = Drawing().op("a", 0, 10, pid=100).op("b", 2, 4, pid=200)
    drawing.op("c", 0, 10, pid=0, thread=7).kernel("k", 2, 4, corr=1, device=0, stream=7)
    drawing.launch("cudaLaunchKernel", 1, 1, corr=1, pid=200)
    return drawing, {"ops": [op("a", 1, (10_000,) * 3), op("b", 1, (4_000,) * 3), op("c", 1, (10_000,) * 3)]}


@trap
def process_and_thread_ids_that_are_strings() -> Drawn:
    # inner lies in outer on the thread "main"; the op on "worker" is apart.
    drawing = Drawing(pid="trainer", thread="main").op("outer", 0, 10).op("inner", 2, 4)
    drawing.launch("cudaLaunchKernel", 3, 1, corr=1).kernel("k", 10, 2, corr=1)
    drawing.op("aside", 2, 4, thread="worker")
    drawing.add(
        {
            "ph": "X",
            "cat": "Trace",
            "ts": 0,
            "dur": 50,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "Trace",
        }
    )
    return drawing, {
        "ops": [
            op("outer", 1, (10_000, 6_000, 6_000), (0, 2_000)),
            op("inner", 1, (4_000, 4_000, 3_000), (2_000, 2_000)),
            op("aside", 1, (4_000,) * 3),
        ]
    }
