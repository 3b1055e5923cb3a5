"""Which launch the work belongs to, and which op the launch."""

from __future__ import annotations

from tests.analyses.traps.rows import Drawn, device, kernel, op, trap
from tests.drawing import Drawing


@trap
def second_device() -> Drawn:
    # One op feeds two devices. Device 0 works 10..14 and 16..20 (span 10, busy 8), device 1 works 12..13.
    drawing = Drawing().op("aten::mm", 0, 10)
    for corr, place, start, dur in [(1, 0, 10, 4), (2, 0, 16, 4), (3, 1, 12, 1)]:
        drawing.launch("cudaLaunchKernel", corr, 1, corr=corr)
        drawing.kernel("k", start, dur, corr=corr, device=place)
    return drawing, {
        "devices": [device("0", 10_000, 8_000), device("1", 1_000, 1_000)],
        "kernels": [kernel("k", [4_000, 4_000, 1_000], 1.0)],
        "ops": [op("aten::mm", 1, (10_000, 10_000, 7_000), (9_000, 9_000))],
    }


@trap
def duplicate_correlations_of_merged_files() -> Drawn:
    # Two processes count correlations from the same number. Work belongs to the latest call that began no
    # later: the kernel at 10 to the call of `first` (at 1), that at 110 to the call of `second` (at 101).
    # Correlation 8 has two calls and both begin after the kernel at 20: unlinked.
    drawing = Drawing().op("first", 0, 10).launch("cudaLaunchKernel", 1, 1, corr=7)
    drawing.op("second", 100, 10, pid=200).launch("cudaLaunchKernel", 101, 1, corr=7, pid=200)
    drawing.kernel("k", 10, 5, corr=7).kernel("k", 110, 3, corr=7)
    drawing.launch("cudaLaunchKernel", 50, 1, corr=8).launch("cudaLaunchKernel", 60, 1, corr=8, pid=200)
    drawing.kernel("k", 20, 2, corr=8)
    return drawing, {
        "ops": [
            op("first", 1, (10_000, 10_000, 9_000), (5_000, 5_000)),
            op("second", 1, (10_000, 10_000, 9_000), (3_000, 3_000)),
        ],
        "devices": [device("0", 103_000, 10_000, unlinked_ns=2_000)],
    }


@trap
def a_call_at_the_very_start_of_its_work() -> Drawn:
    # "No later" includes the same instant: of the calls at 1 and at 10 the kernel at 10 belongs to the
    # second.
    drawing = Drawing().op("first", 0, 5).launch("cudaLaunchKernel", 1, 1, corr=7)
    drawing.op("second", 10, 5).launch("cudaLaunchKernel", 10, 1, corr=7).kernel("k", 10, 4, corr=7)
    return drawing, {
        "ops": [
            op("first", 1, (5_000, 5_000, 4_000)),
            op("second", 1, (5_000, 5_000, 4_000), (4_000, 4_000)),
        ]
    }


@trap
def a_call_that_starts_with_an_op_and_outlives_it() -> Drawn:
    # An op is open at its very start, also where the call that starts with it is the longer, or comes first
    # in the file: both kernels belong to the ops. The calls cover them, so neither has time without runtime
    # calls.
    drawing = (
        Drawing().op("shorter", 0, 4).launch("cudaLaunchKernel", 0, 10, corr=1).kernel("k", 20, 3, corr=1)
    )
    drawing.launch("cudaLaunchKernel", 50, 5, corr=2).op("equal", 50, 5).kernel("k", 60, 2, corr=2)
    return drawing, {
        "ops": [
            op("shorter", 1, (4_000, 4_000, 0), (3_000, 3_000)),
            op("equal", 1, (5_000, 5_000, 0), (2_000, 2_000)),
        ]
    }


@trap
def one_graph_launch_with_many_kernels() -> Drawn:
    # The launch is in the op, all five pieces of work are its: 3 kernels of 2, a memset of 1, a copy of 3.
    drawing = Drawing().op("replay", 0, 10).launch("cudaGraphLaunch", 1, 5, corr=7)
    for start in (10, 12, 14):
        drawing.kernel("k", start, 2, corr=7, args={"graph id": 4})
    drawing.memset("Memset (Device)", 16, 1, corr=7).memcpy("Memcpy DtoD (Device -> Device)", 20, 3, corr=7)
    return drawing, {
        "ops": [op("replay", 1, (10_000, 10_000, 5_000), (10_000, 10_000))],
        "kernels": [kernel("k", [2_000] * 3, 1.0)],
        "devices": [device("0", 13_000, 10_000, kernel_ns=6_000, memset_ns=1_000, memcpy_ns=3_000)],
    }


@trap
def unlinked_work_before_the_window() -> Drawn:
    # Its launch was before recording began: it counts for the device and belongs to no op. The arrow without
    # a start, and `External id` equal to the op's, must not link it.
    drawing = Drawing().op("aten::mm", 10, 10, args={"External id": 99})
    drawing.kernel("old", 0, 5, corr=99, args={"External id": 99}).flow("f", 99, 0, pid=0, tid=7)
    drawing.launch("cudaLaunchKernel", 11, 1, corr=100).kernel("new", 15, 5, corr=100)
    drawing.kernel("no correlation", 20, 5)
    return drawing, {
        "ops": [op("aten::mm", 1, (10_000, 10_000, 9_000), (5_000, 5_000))],
        "devices": [device("0", 25_000, 15_000, unlinked_ns=10_000)],
        "kernels": [kernel(name, [5_000], 1 / 3) for name in ("old", "new", "no correlation")],
    }


@trap
def work_launched_outside_any_op() -> Drawn:
    # The call at 10 starts where the op ends, and an op is open before its end only. It is linked, to no op.
    drawing = Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 10, 1, corr=1)
    drawing.kernel("k", 12, 3, corr=1)
    drawing.op("other thread", 0, 20, thread=2)
    return drawing, {
        "ops": [op("aten::mm", 1, (10_000,) * 3), op("other thread", 1, (20_000,) * 3)],
        "devices": [device("0", 3_000, 3_000)],
    }


@trap
def numbers_as_strings() -> Drawn:
    # "7" is the correlation 7 and "0" the device 0.
    drawing = Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 1, 1, corr="7")
    drawing.kernel("k", 10, 4, corr=7).kernel(
        "k", 14, 4, corr="7", device="0", stream="7", args={"blocks per SM": "0.5"}
    )
    return drawing, {
        "ops": [op("aten::mm", 1, (10_000, 10_000, 9_000), (8_000, 8_000))],
        # Half of the blocks during 4 of 8.
        "devices": [device("0", 8_000, 8_000, sm_efficiency_share=0.25)],
    }
