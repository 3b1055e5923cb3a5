"""Where steps begin and end, and what their time was spent on."""

from __future__ import annotations

from tests.analyses.comparing import Row
from tests.analyses.traps.rows import Drawn, trap
from tests.drawing import Drawing

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu")


def step(number: int, start_ns: int, dur_ns: int, **parts: int) -> Row:
    """A step with the named parts; the rest of its time is other."""
    row: Row = {"step": number, "name": f"ProfilerStep#{number}", "start_ns": start_ns, "dur_ns": dur_ns}
    row |= {f"{part}_ns": parts.get(part, 0) for part in PARTS}
    return row | {"other_ns": dur_ns - sum(parts.values())}


@trap
def a_mark_is_not_its_step() -> Drawn:
    # The host marks 0-10 and 10-20, the kernels run 5-25 and 25-45: so do the steps, the first from its mark.
    drawing = Drawing().mark(1, 0, 10).mark(2, 10, 10)
    drawing.launch("cudaLaunchKernel", 1, 1, corr=1).kernel("k", 5, 20, corr=1)
    drawing.launch("cudaLaunchKernel", 11, 1, corr=2).kernel("k", 25, 20, corr=2)
    return drawing, {
        "steps": [step(1, 0, 25_000, kernel=20_000, runtime=1_000), step(2, 25_000, 20_000, kernel=20_000)]
    }


@trap
def a_launch_at_the_start_of_a_mark_is_its_own() -> Drawn:
    # Begun at 10, the start of step 2: not before it, so it does not push its start, and it belongs to it.
    drawing = Drawing().mark(1, 0, 10).mark(2, 10, 10)
    drawing.launch("cudaLaunchKernel", 10, 1, corr=1).kernel("k", 12, 20, corr=1)
    return drawing, {"steps": [step(1, 0, 10_000), step(2, 10_000, 22_000, runtime=1_000, kernel=20_000)]}


@trap
def a_launch_at_the_end_of_a_mark_is_outside() -> Drawn:
    # Begun at 10, the end of the mark: the step ends there. The work is before nothing.
    drawing = Drawing().mark(1, 0, 10)
    drawing.launch("cudaLaunchKernel", 10, 1, corr=1).kernel("k", 12, 20, corr=1)
    return drawing, {"steps": [step(1, 0, 10_000)]}


@trap
def work_between_marks_delays_the_next_step() -> Drawn:
    # Launched between the marks, run 13-30: in no step, and step 2 (mark 15-20) starts when it is done.
    # What step 2 launches ran before that (16-18, another stream): it has no length at all.
    drawing = Drawing().mark(1, 0, 10).mark(2, 15, 5)
    drawing.launch("cudaLaunchKernel", 12, 1, corr=1).kernel("k", 13, 17, corr=1)
    drawing.launch("cudaLaunchKernel", 16, 1, corr=2).kernel("k", 16, 2, corr=2, stream=8)
    return drawing, {"steps": [step(1, 0, 10_000), step(2, 30_000, 0)]}


@trap
def a_step_starts_when_the_one_before_has_ended() -> Drawn:
    # Marks that overlap (two threads): the second begins where the first ends, with all its work.
    drawing = Drawing().mark(1, 0, 20).mark(2, 5, 10, thread=2)
    drawing.launch("cudaLaunchKernel", 6, 1, corr=1, thread=2).kernel("k", 8, 20, corr=1)
    return drawing, {"steps": [step(1, 0, 28_000, kernel=20_000, runtime=1_000), step(2, 28_000, 0)]}


@trap
def work_that_was_under_way_is_no_part_of_the_first_step() -> Drawn:
    # 0-8 has no launch and began before the first linked work (20): step 1 (mark 5-15) starts at 8. What is
    # unlinked later (30-60) moves nothing.
    drawing = Drawing().mark(1, 5, 10).mark(2, 15, 10)
    drawing.kernel("early", 0, 8, corr=91).kernel("late", 30, 30, corr=92, stream=8)
    drawing.launch("cudaLaunchKernel", 12, 1, corr=1).kernel("k", 20, 5, corr=1)
    return drawing, {
        "steps": [step(1, 8_000, 17_000, kernel=5_000, runtime=1_000), step(2, 25_000, 0)],
    }


@trap
def work_under_way_pushes_the_first_step_only() -> Drawn:
    # The unlinked work 0-18 lasts into mark 2 (15-30); step 1 (mark 5-15) is pushed beyond its own mark, to
    # 18, and step 2 begins where that ends.
    drawing = Drawing().mark(1, 5, 10).mark(2, 15, 15)
    drawing.kernel("early", 0, 18, corr=91)
    drawing.launch("cudaLaunchKernel", 16, 1, corr=1).kernel("k", 20, 5, corr=1)
    return drawing, {"steps": [step(1, 18_000, 0), step(2, 18_000, 12_000, kernel=5_000)]}


@trap
def without_linked_work_nothing_is_under_way() -> Drawn:
    # No launch in the file: the kernel 0-8 does not move the step, it is just in it.
    drawing = Drawing().mark(1, 5, 10).kernel("k", 0, 8, corr=91)
    return drawing, {"steps": [step(1, 5_000, 10_000, kernel=3_000)]}


@trap
def each_instant_goes_to_the_first_that_applies() -> Drawn:
    # Everything ends at 20 and each begins 2 later, the first of the order last: kernel 16-20, memcpy 14-16,
    # memset 12-14, communication 10-12, runtime 8-10, dataloader 6-8, operator 4-6, and 0-4 is other.
    drawing = Drawing().mark(1, 0, 20)
    drawing.op("aten::mm", 4, 16).annotation("enumerate(DataLoader)#_Loader.__next__", 6, 14)
    drawing.launch("cudaLaunchKernel", 8, 12, corr=1)
    drawing.kernel("ncclDevKernel_AllReduce", 10, 10, corr=1, stream=9)
    drawing.memset("Memset (Device)", 12, 8, corr=1, stream=8)
    drawing.memcpy("Memcpy HtoD (Pinned -> Device)", 14, 6, corr=1, stream=10)
    drawing.kernel("gemm", 16, 4, corr=1)
    return drawing, {
        "steps": [
            step(
                1, 0, 20_000, kernel=4_000, memcpy=2_000, memset=2_000, communication=2_000, runtime=2_000,
                dataloader=2_000, cpu=2_000,
            )
        ]
    }  # fmt: skip


@trap
def other_threads_hide_nothing() -> Drawn:
    # Thread 3 neither marks nor launches linked work: its operator and its call (which launched nothing) do
    # not count, so 2-10 is other. Thread 2 launches: its operator (10-14) counts, its call too (11-12).
    drawing = Drawing().mark(1, 0, 20)
    drawing.op("aten::pin_memory", 2, 8, thread=3).launch("cudaHostAlloc", 3, 5, corr=77, thread=3)
    drawing.op("aten::mm", 10, 4, thread=2).launch("cudaLaunchKernel", 11, 1, corr=1, thread=2)
    drawing.kernel("k", 15, 2, corr=1)
    return drawing, {"steps": [step(1, 0, 20_000, kernel=2_000, runtime=1_000, cpu=3_000)]}


@trap
def host_collectives_and_data_loading_count_on_any_thread() -> Drawn:
    # gloo 2-6 on thread 8, mpi as an operator 6-7 on thread 9, data loading 8-11 on thread 10.
    drawing = Drawing().mark(1, 0, 20)
    drawing.annotation("gloo:all_reduce", 2, 4, thread=8).op("mpi:barrier", 6, 1, thread=9)
    drawing.annotation("enumerate(DataPipe)#Shuffler", 8, 3, thread=10)
    drawing.annotation("not gloo:", 12, 3, thread=8)
    return drawing, {"steps": [step(1, 0, 20_000, communication=5_000, dataloader=3_000)]}


@trap
def device_copies_of_marks_are_no_steps() -> Drawn:
    drawing = Drawing().mark(3, 0, 10)
    drawing.annotation("ProfilerStep#3", 5, 40, cat="gpu_user_annotation", pid=0, thread=7)
    drawing.annotation("ProfilerStep#4", 50, 40, cat="gpu_user_annotation", pid=0, thread=7)
    return drawing, {"steps": [step(3, 0, 10_000)]}


@trap
def names_that_are_nearly_marks() -> Drawn:
    drawing = Drawing().mark(3, 0, 10)
    for name in ("ProfilerStep#", "ProfilerStep#4b", "my ProfilerStep#4", "profilerstep#4", "ProfilerStep 4"):
        drawing.annotation(name, 20, 5)
    drawing.add({"ph": "i", "cat": "user_annotation", "name": "ProfilerStep#9", "pid": 1, "tid": 1, "ts": 30})
    return drawing, {"steps": [step(3, 0, 10_000)]}


@trap
def marks_of_old_versions_are_operators() -> Drawn:
    # torch 1.8 wrote the mark as an operator; then it covers the whole step as one.
    drawing = Drawing().op("ProfilerStep#2", 0, 10, cat="Operator").op("aten::mm", 2, 3, cat="Operator")
    return drawing, {"steps": [step(2, 0, 10_000, cpu=10_000)]}


@trap
def operators_that_cross_are_all_counted() -> Drawn:
    # 2-6 and 4-9 cross: together 2-9. Thread 1 has the mark.
    drawing = Drawing().mark(1, 0, 12).op("a", 2, 4).op("b", 4, 5)
    return drawing, {"steps": [step(1, 0, 12_000, cpu=7_000)]}


@trap
def work_of_all_devices_and_threads_extends_a_step() -> Drawn:
    # Launched by another thread for another device inside the mark.
    drawing = Drawing().mark(1, 0, 10)
    drawing.launch("cudaLaunchKernel", 5, 1, corr=1, thread=2).kernel("k", 8, 22, corr=1, device=1)
    drawing.launch("cudaLaunchKernel", 2, 1, corr=2).kernel("k", 4, 2, corr=2, device=0)
    return drawing, {"steps": [step(1, 0, 30_000, kernel=24_000, runtime=1_000)]}


@trap
def one_graph_launch_owns_all_its_kernels() -> Drawn:
    # Launched in step 1, the last kernel ends at 40: step 1 ends there, step 2 (mark 10-20) has nothing left.
    drawing = Drawing().mark(1, 0, 10).mark(2, 10, 10)
    drawing.launch("cudaGraphLaunch", 3, 2, corr=5)
    for start in (6, 16, 30):
        drawing.kernel("k", start, 10, corr=5)
    return drawing, {"steps": [step(1, 0, 40_000, kernel=30_000, runtime=2_000), step(2, 40_000, 0)]}


@trap
def steps_come_in_order_of_time_not_of_number() -> Drawn:
    # A second cycle of the profiler counts on from another number; the file has them in no order.
    drawing = Drawing().mark(7, 20, 5).mark(12, 0, 5).mark(3, 10, 5)
    return drawing, {"steps": [step(12, 0, 5_000), step(3, 10_000, 5_000), step(7, 20_000, 5_000)]}
