"""Profiles that are out of the ordinary, drawn small: what every analysis has to survive."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.drawing import Drawing, Literal
from tests.samples import KEPT

import stepscope
from stepscope.store.trace import Trace

ODDITIES: dict[str, Callable[[], Drawing]] = {}


def oddity(draw: Callable[[], Drawing]) -> Callable[[], Drawing]:
    ODDITIES[draw.__name__] = draw
    return draw


@lru_cache(maxsize=4)
def open_odd(name: str) -> Trace:
    """The trace of one, for all tests of the process that only look at it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=KEPT))
    return stepscope.open(ODDITIES[name]().write(folder / "odd.json"), store=folder)


LINEAR = {
    "Input Dims": [[64], [32, 128], [128, 64], [], []],
    "Input type": ["float", "float", "float", "Scalar", "Scalar"],
    "Input Strides": [[1], [128, 1], [64, 1], [], []],
    "Concrete Inputs": ["", "", "", "1", "1"],
}
GRID = {
    "grid": [264, 1, 1], "block": [128, 1, 1], "registers per thread": 64, "shared memory": 49152,
    "blocks per SM": 2, "warps per SM": 8, "est. achieved occupancy %": 25,
}  # fmt: skip


def training(*, steps: int = 3, devices: int = 1, host: bool = True, device: bool = True) -> Drawing:
    """Steps of a training: a loader, modules, forward, backward on its own thread, an optimizer, waits.

    A step is a millisecond; no two events of a thread start together.
    """
    drawing = Drawing().meta(record_shapes=1, with_stack=1, profile_memory=1)
    drawing.named_thread("thread 1 (python)")
    for step in range(steps):
        at = 1000 * step
        if host:
            training_host(drawing, step, at)
        if device:
            for number in range(devices):
                training_device(drawing, step, at + 5 * number, number)
    return drawing


def training_host(drawing: Drawing, step: int, at: int) -> None:
    corr = 100 * step
    drawing.mark(step, at, 990)
    drawing.frame("train.py(10): main", at + 1, 985).frame("train.py(20): step", at + 2, 980)
    drawing.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 5, 80)
    drawing.op("aten::to", at + 100, 40).launch("cudaMemcpyAsync", at + 110, 20, corr=corr + 1)
    drawing.frame("nn.Module: Linear_0", at + 150, 100, args={"Python module id": 0})
    drawing.op("aten::linear", at + 160, 80, args={**LINEAR, "Sequence number": step, "Fwd thread id": 0})
    drawing.op("aten::addmm", at + 165, 70, args={**LINEAR, "Sequence number": step, "Fwd thread id": 0})
    drawing.launch("cudaLaunchKernel", at + 170, 10, corr=corr + 2)
    drawing.memory(at + 168, 8192)
    backward = {"Sequence number": step, "Fwd thread id": 1}
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    drawing.op(node, at + 300, 100, thread=2, args=backward)
    drawing.op("AddmmBackward0", at + 305, 90, thread=2, args=backward)
    drawing.op("aten::mm", at + 310, 70, thread=2, args=LINEAR)
    drawing.launch("cudaLaunchKernel", at + 320, 10, corr=corr + 3, thread=2)
    drawing.launch("cudaLaunchKernel", at + 350, 10, corr=corr + 4, thread=2)
    drawing.memory(at + 315, 4096, thread=2)
    drawing.annotation("Optimizer.step#SGD.step", at + 500, 100)
    drawing.op("aten::_foreach_add_", at + 510, 50).launch("cudaLaunchKernel", at + 520, 10, corr=corr + 5)
    drawing.memory(at + 590, -8192)
    drawing.op("aten::item", at + 700, 200).op("aten::_local_scalar_dense", at + 705, 190)
    drawing.launch("cudaMemcpyAsync", at + 710, 12, corr=corr + 6)
    drawing.launch("cudaStreamSynchronize", at + 730, 150, corr=corr + 7)


def training_device(drawing: Drawing, step: int, at: int, device: int) -> None:
    corr = 100 * step
    on: dict[str, Any] = {"device": device}
    copy = {"bytes": 16384, "memory bandwidth (GB/s)": 3.2}
    drawing.memcpy("Memcpy HtoD (Pinned -> Device)", at + 140, 5, corr=corr + 1, args=copy, **on)
    drawing.kernel("sgemm_128x64_tn", at + 190, 60, corr=corr + 2, args=GRID, **on)
    drawing.kernel("sgemm_128x64_nt", at + 345, 50, corr=corr + 3, args=GRID, **on)
    drawing.kernel("ncclDevKernel_AllReduce_Sum_f32", at + 380, 90, corr=corr + 4, stream=20, args=GRID, **on)
    drawing.kernel("multi_tensor_apply_kernel", at + 540, 20, corr=corr + 5, args=GRID, **on)
    drawing.memcpy("Memcpy DtoH (Device -> Pageable)", at + 725, 3, corr=corr + 6, args=copy, **on)
    drawing.annotation(f"ProfilerStep#{step}", at + 140, 600, cat="gpu_user_annotation", pid=device, thread=7)


@oddity
def host_alone() -> Drawing:
    return training(device=False)


@oddity
def devices_alone() -> Drawing:
    return training(host=False)


@oddity
def two_devices() -> Drawing:
    return training(devices=2)


@oddity
def one_step() -> Drawing:
    return training(steps=1)


@oddity
def another_maker() -> Drawing:
    """ROCm: hip names in the categories of CUDA, no occupancy, copies that block."""
    drawing = Drawing()
    for step in range(3):
        at = 100 * step
        drawing.mark(step, at, 95).op("aten::mm", at + 5, 40, args=LINEAR)
        drawing.launch("hipExtModuleLaunchKernel", at + 10, 5, corr=10 * step + 1)
        drawing.launch("hipMemcpyWithStream", at + 50, 30, corr=10 * step + 2)
        drawing.kernel("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", at + 20, 20, corr=10 * step + 1)
        drawing.memcpy("CopyDeviceToHost", at + 60, 10, corr=10 * step + 2, args={"bytes": "1024"})
        drawing.launch("hipDeviceSynchronize", at + 85, 5, corr=10 * step + 3)
    return drawing


@oddity
def mtia() -> Drawing:
    drawing = Drawing().meta(deviceProperties=[])
    for step in range(3):
        at = 100 * step
        drawing.op("aten::mm", at + 5, 40)
        drawing.launch(
            "runFunction - job_prep_and_submit_for_execution", at + 10, 5, corr=step, cat="mtia_runtime"
        )
        drawing.kernel(
            "kernel", at + 30, 20, corr=step, cat="mtia_ccp_events", pid=0, device=None, stream=None
        )
    return drawing


@oddity
def xpu() -> Drawing:
    drawing = (
        Drawing().op("aten::mm", 5, 40).launch("urEnqueueKernelLaunch", 10, 5, corr=1, cat="xpu_runtime")
    )
    return drawing.kernel("gemm_kernel", 30, 20, corr=1)


@oddity
def inference() -> Drawing:
    """Ranges that repeat, no marks."""
    drawing = Drawing()
    for number in range(4):
        at = 100 * number
        drawing.annotation(f"decode {number}", at, 90).op("aten::mm", at + 5, 40, args=LINEAR)
        drawing.launch("cudaLaunchKernel", at + 10, 5, corr=number).kernel(
            "gemm", at + 20, 30, corr=number, args=GRID
        )
    return drawing


@oddity
def serving() -> Drawing:
    """Ranges as servers write them, some of them odd."""
    names = [
        "execute_context_1(512)_generation_3(3)",
        "execute_new_2_cached_0",
        "step[DECODE bs=4 seq=9]",
        "execute_",
    ]
    drawing = Drawing()
    for number, name in enumerate(names):
        at = 100 * number
        drawing.annotation(name, at, 90).launch("cudaGraphLaunch", at + 10, 5, corr=number)
        drawing.kernel("gemm", at + 20, 30, corr=number, args={"graph id": 1, "graph node id": 4})
    return drawing


@oddity
def graphs_alone() -> Drawing:
    """Nothing but launches of graphs and what they hold."""
    drawing = Drawing()
    for number in range(4):
        at = 100 * number
        drawing.launch("cudaGraphLaunch", at, 5, corr=number)
        for place in range(5):
            node = {"graph id": 2, "graph node id": place}
            drawing.kernel(f"k{place}", at + 10 + 12 * place, 10, corr=number, args=GRID | node)
    return drawing


@oddity
def one_op() -> Drawing:
    return Drawing().op("aten::mm", 5, 3)


@oddity
def one_kernel() -> Drawing:
    return Drawing().kernel("k", 5, 3)


@oddity
def one_launch() -> Drawing:
    return Drawing().launch("cudaLaunchKernel", 5, 3, corr=1)


@oddity
def one_mark() -> Drawing:
    return Drawing().mark(3, 5, 3)


@oddity
def one_frame() -> Drawing:
    return Drawing().frame("train.py(3): step", 5, 3)


@oddity
def nothing() -> Drawing:
    return Drawing()


@oddity
def metadata_alone() -> Drawing:
    return Drawing().named_thread("main").named_thread("worker", thread=2).meta(distributedInfo={"rank": 3})


@oddity
def memory_alone() -> Drawing:
    drawing = Drawing()
    for number in range(6):
        drawing.memory(number, 512 if number % 3 else -512)
    return drawing


@oddity
def arrows_alone() -> Drawing:
    return Drawing().flow("s", 1, 5).flow("f", 1, 9, pid=0, tid=7)


@oddity
def no_names() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        if event["ph"] == "X" and not str(event["name"]).startswith("ProfilerStep"):
            del event["name"]
    return drawing


@oddity
def empty_names() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        event["name"] = ""
    return drawing


@oddity
def host_clock_ahead() -> Drawing:
    """The device's clock runs a second behind: work begins before its launch."""
    return moved_devices(Decimal(-1_000_000))


@oddity
def host_clock_behind() -> Drawing:
    return moved_devices(Decimal(1_000_000))


def moved_devices(shift: Decimal) -> Drawing:
    drawing = training()
    for event in drawing.events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_user_annotation"):
            event["ts"] += shift + 2_000_000
        elif event["ph"] != "M":
            event["ts"] += 2_000_000
    return drawing


@oddity
def no_lengths() -> Drawing:
    """Everything takes no time at all."""
    drawing = training()
    for event in drawing.events:
        if "dur" in event:
            event["dur"] = 0
    return drawing


@oddity
def one_instant() -> Drawing:
    """Everything at once."""
    drawing = training(devices=2)
    for event in drawing.events:
        event["ts"] = 7
    return drawing


@oddity
def no_durations() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        event.pop("dur", None)
    return drawing


@oddity
def no_starts() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events[::2]:
        event.pop("ts", None)
    return drawing


@oddity
def negative_durations() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events[::3]:
        if "dur" in event:
            event["dur"] = -5
    return drawing


@oddity
def endless() -> Drawing:
    """From the beginning of time for centuries."""
    return training().op("stuck", 0, 10**13).kernel("stuck", 0, 10**13, corr=999).mark(9, 0, 10**13)


@oddity
def no_arguments() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        event.pop("args", None)
    return drawing


@oddity
def arguments_of_the_wrong_kind() -> Drawing:
    drawing = training(steps=2)
    wrong: dict[str, Any] = {
        "Input Dims": "none", "Input type": 7, "Input Strides": [None, [["x"]]], "Concrete Inputs": {"a": 1},
        "grid": "1x1", "block": [None, "two"], "registers per thread": "many", "shared memory": -1,
        "blocks per SM": Literal("inf"), "warps per SM": Literal("NaN"), "bytes": "some", "stream": "seven",
        "est. achieved occupancy %": "N/A", "Sequence number": "first", "Fwd thread id": [1], "Addr": None,
        "Device Type": "GPU", "Total Allocated": "all", "Python module id": "zero", "graph id": 1.5,
    }  # fmt: skip
    for event in drawing.events:
        if "args" in event:
            event["args"] = {**event["args"], **{key: wrong[key] for key in wrong if key in event["args"]}}
    drawing.op("aten::addmm", 5000, 10, args=wrong).kernel("k", 5001, 5, corr=77, args=wrong)
    return drawing


@oddity
def metadata_of_the_wrong_kind() -> Drawing:
    drawing = training(steps=2)
    return drawing.meta(
        deviceProperties={"name": 3},
        distributedInfo=["rank"],
        with_stack="yes",
        record_shapes=None,
        trace_id=[1],
    )


@oddity
def device_properties_of_the_wrong_kind() -> Drawing:
    wrong = {"id": "zero", "name": None, "numSms": "many", "computeMajor": None, "regsPerMultiprocessor": -1}
    return training(steps=2).meta(deviceProperties=[wrong, None, 3, {"id": 0}])


@oddity
def crossing_marks() -> Drawing:
    return training().mark(7, 500, 1000).mark(7, 1500, 1000).mark(1, 100, 100)


@oddity
def marks_without_work() -> Drawing:
    return Drawing().mark(0, 0, 10).mark(1, 10, 10).mark(2, 30, 0)


@oddity
def work_outside_the_marks() -> Drawing:
    drawing = Drawing().mark(0, 1000, 10).mark(1, 1010, 10)
    return drawing.op("aten::mm", 0, 5).launch("cudaLaunchKernel", 1, 2, corr=1).kernel("k", 2000, 5, corr=1)


@oddity
def no_correlations() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        event.get("args", {}).pop("correlation", None)
    return drawing


@oddity
def one_correlation() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = 1
    return drawing


@oddity
def names_of_many_letters() -> Drawing:
    drawing = Drawing()
    for number, name in enumerate(
        ["\u00e4\u00f6", "\u6a21\u578b", "a\tb\nc", "'; DROP TABLE ops; --", "%s{}$1", "x" * 5000]
    ):
        drawing.op(name, 10 * number, 5).kernel(name, 10 * number + 3, 5, corr=number)
        drawing.frame(f"{name}.py(3): {name}", 10 * number + 1, 3).annotation(name, 10 * number + 2, 2)
    return drawing


@oddity
def threads_that_are_texts() -> Drawing:
    drawing = training(steps=2)
    for event in drawing.events:
        event["pid"], event["tid"] = f"process {event['pid']}", f"thread {event['tid']}"
    return drawing


@oddity
def collectives() -> Drawing:
    drawing = Drawing().meta(distributedInfo={"backend": "nccl", "rank": 1, "world_size": 2})
    for step in range(2):
        at = 100 * step
        told = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Group size": 2}
        drawing.mark(step, at, 95).op("c10d::allreduce_", at + 5, 30).op(
            "record_param_comms", at + 6, 20, args=told
        )
        drawing.annotation("nccl:all_reduce", at + 7, 10).launch("cudaLaunchKernelExC", at + 10, 5, corr=step)
        drawing.kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 20, 50, corr=step, stream=20, args=told
        )
        drawing.annotation("gloo:all_reduce", at + 40, 20, thread=3)
    return drawing


@oddity
def compiling() -> Drawing:
    drawing = training(steps=2)
    drawing.op("Torch-Compiled Region: 0/0", 120, 30).op("Torch-Compiled Region: 0/1", 1120, 30)
    drawing.annotation("_compile.compile_inner (dynamo_timed)", 1121, 20).op("CompiledFunction", 1143, 5)
    return drawing.annotation("## Call CompiledFxGraph abc ##", 1144, 3)
