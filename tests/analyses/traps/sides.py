"""What is host and what is device."""

from __future__ import annotations

from tests.analyses.traps.rows import Drawn, call, category, device, kernel, op, trap
from tests.drawing import Drawing


@trap
def ops_with_a_stream_argument() -> Drawn:
    # Compiled ops carry `stream` (and here even a device); they are host ops all the same.
    drawing = Drawing().op("triton_poi_fused_0", 0, 10, args={"stream": 7, "device": 0, "num_warps": 4})
    drawing.launch("cuLaunchKernel", 1, 1, corr=1, cat="cuda_driver").kernel(
        "triton_poi_fused_0", 12, 2, corr=1
    )
    return drawing, {
        "ops": [op("triton_poi_fused_0", 1, (10_000, 10_000, 9_000), (2_000, 2_000))],
        "kernels": [kernel("triton_poi_fused_0", [2_000], 1.0)],
        "devices": [device("0", 2_000, 2_000)],
    }


@trap
def device_ranges_are_not_work() -> Drawn:
    # Annotations and synchronisations on the device stretch neither its span nor its busy time, and the
    # device that has nothing else has no row.
    drawing = Drawing().kernel("k", 10, 5, corr=1)
    drawing.annotation("forward", 0, 40, cat="gpu_user_annotation", pid=0, thread=7, args={"stream": 7})
    drawing.annotation("Stream Sync", 2, 30, cat="cuda_sync", pid=0, thread=1_000_007, args={"device": 0})
    drawing.annotation("ProfilerStep#3", 0, 9, cat="gpu_user_annotation", pid=3, thread=7)
    return drawing, {
        "devices": [device("0", 5_000, 5_000, unlinked_ns=5_000)],
        "categories": [
            category("kernel", "X", 1, 5_000),
            category("gpu_user_annotation", "X", 2, 49_000),
            category("cuda_sync", "X", 1, 30_000),
        ],
        "ops": [],
        "runtime_calls": [],
    }


@trap
def old_category_names() -> Drawn:
    # torch 1.12 and older. The rows of categories keep the old spelling.
    drawing = Drawing().op("aten::mm", 0, 10, cat="Operator")
    drawing.launch("cudaLaunchKernel", 1, 2, corr=1, cat="Runtime").kernel("k", 10, 4, corr=1, cat="Kernel")
    drawing.memcpy("Memcpy HtoD (Pageable -> Device)", 14, 2, corr=1, cat="Memcpy")
    drawing.memset("Memset (Device)", 18, 1, corr=1, cat="Memset")
    return drawing, {
        "categories": [
            category("Operator", "X", 1, 10_000),
            category("Runtime", "X", 1, 2_000),
            category("Kernel", "X", 1, 4_000),
            category("Memcpy", "X", 1, 2_000),
            category("Memset", "X", 1, 1_000),
        ],
        "kernels": [kernel("k", [4_000], 1.0)],
        "runtime_calls": [call("cudaLaunchKernel", 1, 2_000)],
        "ops": [op("aten::mm", 1, (10_000, 10_000, 8_000), (7_000, 7_000))],
        "devices": [device("0", 9_000, 7_000, kernel_ns=4_000, memcpy_ns=2_000, memset_ns=1_000)],
    }


@trap
def runtimes_of_other_makers() -> Drawn:
    # Each category is a runtime; each launches work of 1.
    drawing = Drawing().op("aten::mm", 0, 10)
    for corr, name in enumerate(["mtia_runtime", "xpu_runtime", "privateuse1_runtime"]):
        drawing.launch(name, corr, 1, corr=corr, cat=name).kernel("k", 20 + corr, 1, corr=corr)
    drawing.kernel("ccp", 23, 1, corr=0, cat="mtia_ccp_events")
    return drawing, {
        "ops": [op("aten::mm", 1, (10_000, 10_000, 7_000), (4_000, 4_000))],
        "runtime_calls": [
            call(name, 1, 1_000) for name in ("mtia_runtime", "xpu_runtime", "privateuse1_runtime")
        ],
    }


@trap
def a_peer_copy_without_device() -> Drawn:
    # Then the process id is the device. Bytes come as a string. Copies are never communication.
    drawing = Drawing().kernel("k", 0, 4, device=1)
    drawing.memcpy("Memcpy PtoP (Device -> Device)", 6, 4, device=None, pid=1, args={"bytes": "1024"})
    drawing.memcpy("nccl all_reduce copy", 12, 2, device=0)
    return drawing, {
        "devices": [
            device("1", 10_000, 8_000, kernel_ns=4_000, memcpy_ns=4_000, unlinked_ns=8_000),
            device("0", 2_000, 2_000, kernel_ns=0, memcpy_ns=2_000, unlinked_ns=2_000),
        ],
        "kernels": [kernel("k", [4_000], 1.0)],
    }


@trap
def a_data_loader_and_its_threads() -> Drawn:
    # Step 1, mark 0..20: loading 0..8, in which thread 1 runs an op 2..4, which is loading, for that comes
    # first; op 8..12 with a launch 9..10; kernel 11..15; a pin-memory thread is busy throughout and hides
    # nothing. kernel 4, runtime 1, dataloader 8, cpu 8..9 and 10..11 = 2, other 15..20 = 5.
    drawing = Drawing().mark(1, 0, 20).annotation("enumerate(DataLoader)#_SingleProcess.__next__", 0, 8)
    drawing.op("aten::stack", 2, 2).op("aten::mm", 8, 4).launch("cudaLaunchKernel", 9, 1, corr=1)
    drawing.kernel("k", 11, 4, corr=1)
    drawing.op("aten::pin_memory", 0, 20, thread=2).launch("cudaHostAlloc", 1, 18, corr=2, thread=2)
    step = {"step": 1, "name": "ProfilerStep#1", "start_ns": 0, "dur_ns": 20_000, "kernel_ns": 4_000}
    step |= {"memcpy_ns": 0, "memset_ns": 0, "communication_ns": 0, "runtime_ns": 1_000}
    return drawing, {
        "steps": [{**step, "dataloader_ns": 8_000, "cpu_ns": 2_000, "other_ns": 5_000}],
        "ops": [
            op("aten::stack", 1, (2_000,) * 3),
            op("aten::mm", 1, (4_000, 4_000, 3_000), (4_000, 4_000)),
            op("aten::pin_memory", 1, (20_000, 20_000, 2_000)),
        ],
    }
