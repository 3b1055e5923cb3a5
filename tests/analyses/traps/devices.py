"""Busy time, communication and blocks per SM of a device."""

from __future__ import annotations

from typing import Any

from tests.analyses.traps.rows import Drawn, device, kernel, trap
from tests.drawing import Drawing, Literal


@trap
def kernels_that_overlap_by_design() -> Drawn:
    # 0..10 and 8..20 on one stream: busy 20, durations 22. Blocks: 0.5 until 8, 1.25 (so 1) until 10, then
    # 0.75: 4 + 2 + 7.5 of 20.
    drawing = Drawing().kernel("a", 0, 10, args={"blocks per SM": 0.5})
    drawing.kernel("b", 8, 12, args={"blocks per SM": 0.75})
    return drawing, {
        "kernels": [kernel("a", [10_000], 10 / 22), kernel("b", [12_000], 12 / 22)],
        "devices": [device("0", 20_000, 20_000, unlinked_ns=22_000, sm_efficiency_share=13.5 / 20)],
    }


@trap
def blocks_per_sm_that_say_nothing() -> Drawn:
    # Only finite positive values count. 0..10: 0.25 + 0.5 on two streams; 10..20: "0.5"; 70..80: 2, so 1.
    # 7.5 + 5 + 10 of 80; the rest runs and adds nothing.
    drawing = Drawing()
    values: list[Any] = [0.25, "0.5", 0, "inf", Literal("Infinity"), Literal("NaN"), -1, 2.0]
    for number, value in enumerate(values):
        drawing.kernel("k", 10 * number, 10, args={"blocks per SM": value})
    drawing.kernel("k", 0, 10, stream=8, args={"blocks per SM": 0.5})
    return drawing, {
        "devices": [device("0", 80_000, 80_000, unlinked_ns=90_000, sm_efficiency_share=22.5 / 80)],
        "kernels": [kernel("k", [10_000] * 9, 1.0)],
    }


@trap
def blocks_per_sm_that_are_all_unknown() -> Drawn:
    drawing = Drawing().kernel("k", 0, 10, args={"blocks per SM": 0}).kernel("k", 10, 10)
    return drawing, {"devices": [device("0", 20_000, 20_000, unlinked_ns=20_000)]}


COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv(ncclDevComm*)",
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "oneccl_allreduce_small",
    "nvshmemi_transfer_rma_kernel",
    "void deep_ep::internode::dispatch<true>(int)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(RankData*)",
    "multimem_one_shot_kernel",
    "all_reduce_kernel",
    "AllReduceTwoShot",
    "allreduce_fusion_kernel_oneshot_lamport",
    "all-gather",
    "AllGather_ring",
    "reduce_scatter_bf16",
    "ReduceScatterKernel",
    "all_to_all_single",
    "AllToAllv",
    "alltoall_dispatch",
    "ALL_REDUCE",
]
COMPUTE = [
    "void at::native::reduce_kernel<512, 1>(at::native::ReduceOp)",
    "vectorized_gather_kernel",
    "void at::native::_scatter_gather_elementwise_kernel<128>()",
    "ampere_sgemm_128x64_nn",
    "triton_red_fused_all_0",
]


@trap
def spellings_of_communication() -> Drawn:
    # One after the other, 1 µs each.
    drawing = Drawing()
    names = COMMUNICATION + COMPUTE
    for number, name in enumerate(names):
        drawing.kernel(name, number, 1)
    n, m = len(COMMUNICATION) * 1000, len(COMPUTE) * 1000
    figures = {"compute_ns": m, "communication_ns": n, "exposed_communication_ns": n, "overlap_share": 0.0}
    return drawing, {"devices": [device("0", n + m, n + m, unlinked_ns=n + m, **figures)]}


@trap
def communication_behind_compute() -> Drawn:
    # nccl 0..10 on stream 20, compute 4..8 and 9..12 on stream 7, a copy 20..30 hides nothing: of 10 of
    # communication 4 + 1 are hidden. Kernels cover 0..12.
    drawing = Drawing().kernel("ncclDevKernel_AllReduce", 0, 10, stream=20)
    drawing.kernel("k", 4, 4).kernel("k", 9, 3).memcpy("Memcpy HtoD (Pinned -> Device)", 20, 10)
    figures = {"compute_ns": 7_000, "communication_ns": 10_000, "exposed_communication_ns": 5_000}
    figures |= {"memcpy_ns": 10_000, "unlinked_ns": 27_000}
    return drawing, {
        "devices": [device("0", 30_000, 22_000, kernel_ns=12_000, overlap_share=0.5, **figures)],
        "kernels": [
            kernel("ncclDevKernel_AllReduce", [10_000], 10 / 17),
            kernel("k", [4_000, 3_000], 7 / 17),
        ],
    }
