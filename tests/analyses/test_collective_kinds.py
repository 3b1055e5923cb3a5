"""Collectives of one rank: their kind by what ran, bytes, bus bandwidth, and how much is exposed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import DEVICE, Drawing
from tests.samples import open_shared

import stepscope
from stepscope.analyses.collective_kinds import CollectiveKind, collective_kinds
from stepscope.analyses.devices import devices
from stepscope.costs.collectives import bus_factor, kind_of_kernel, kind_of_operation

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
H100 = {**DEVICE, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 79 << 30}


def table(drawing: Drawing, folder: Path) -> list[CollectiveKind]:
    folder.mkdir(exist_ok=True)
    trace = stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")
    return list(collective_kinds(trace))


def machine(devices: int = 8, world_size: int | None = 8) -> Drawing:
    """One step on a machine with some H100."""
    listed = [{**H100, "id": number} for number in range(devices)]
    told = Drawing().meta(deviceProperties=listed)
    if world_size:
        told.meta(distributedInfo={"backend": "nccl", "rank": 0, "world_size": world_size})
    return told.mark(1, 0, 1000)


def asked(collective: str, elements: int, *, size: int = 8, out: int | None = None) -> dict[str, Any]:
    """The arguments that the profiler writes to a kernel of NCCL."""
    told = {"Collective name": collective, "In msg nelems": elements, "Out msg nelems": out or elements}
    ranks = str(list(range(size)))
    told |= {"Group size": size, "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": ranks}
    return told


def test_the_arguments_of_a_kernel_say_what_it_is(tmp_path: Path) -> None:
    # 9 MB in 100 and in 200 µs; compute beside the second for 50 of its 200.
    drawing = machine().kernel(GENERIC, 0, 100, stream=9, args=asked("allreduce", 4_500_000))
    drawing.kernel(GENERIC, 200, 200, stream=9, args=asked("allreduce", 4_500_000)).kernel("gemm", 350, 100)
    (row,) = table(drawing, tmp_path)
    assert (row.kind, row.backend, row.group, row.dtype) == ("all-reduce", "device", "0", "bf16")
    assert (row.group_size, row.one_machine, row.least_bytes) == (8, True, 1 << 23)
    assert (row.calls, row.bytes, row.total_ns, row.exposed_ns) == (2, 18_000_000, 300_000, 250_000)
    assert (row.min_ns, row.median_ns) == (100_000, 150_000)
    assert row.algorithm_gb_per_s == pytest.approx(60)
    assert row.bus_gb_per_s == pytest.approx(60 * 1.75)
    assert row.best_bus_gb_per_s == pytest.approx(90 * 1.75)
    assert (row.link, row.link_gb_per_s) == ("NVLink", 450)
    assert row.link_share == pytest.approx(60 * 1.75 / 450)


def test_the_larger_side_is_the_size(tmp_path: Path) -> None:
    drawing = machine().kernel(
        "ncclDevKernel_AllGather_RING_LL", 0, 10, args=asked("_allgather_base", 1000, out=8000)
    )
    drawing.kernel(
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", 20, 10, args=asked("_reduce_scatter_base", 8000)
    )
    gather, scatter = sorted(table(drawing, tmp_path), key=lambda row: row.kind)
    assert [(row.kind, row.bytes) for row in (gather, scatter)] == [
        ("all-gather", 16_000),
        ("reduce-scatter", 16_000),
    ]
    assert gather.bus_gb_per_s == pytest.approx(1.6 * 7 / 8)


def older(name: str, kernel: str, *, types: str = "float", op: str | None = None) -> Drawing:
    """A kernel without arguments, launched in the range that torch puts around it."""
    drawing = machine()
    if op:
        drawing.op(op, 1, 20)
    drawing.op("record_param_comms", 2, 18).annotation(
        name, 3, 16, args={"Input Dims": [[8, 1000]], "Input type": [types]}
    )
    return drawing.launch("cudaLaunchKernel", 4, 2, corr=1).kernel(kernel, 30, 10, corr=1)


def test_sends_and_receives_are_what_asked_for_them(tmp_path: Path) -> None:
    (row,) = table(older("nccl:all_to_all", SEND), tmp_path)
    assert (row.kind, row.bytes, row.dtype, row.group, row.group_size) == (
        "all-to-all",
        32_000,
        "fp32",
        None,
        8,
    )
    assert row.bus_gb_per_s == pytest.approx(3.2 * 7 / 8)
    (row,) = table(older("nccl:recv 0<-1", SEND), tmp_path / "b")
    assert (row.kind, row.bytes) == ("send-receive", 32_000)
    (row,) = table(machine().kernel(SEND, 1, 10), tmp_path / "c")
    assert (row.kind, row.bytes, row.bus_gb_per_s) == ("send-receive", None, None)


def test_a_kernel_that_contradicts_its_caller_is_unknown(tmp_path: Path) -> None:
    """NCCL 2.13 calls all of its kernels SendRecv."""
    (row,) = table(older("nccl:all_reduce", SEND, op="c10d::allreduce_"), tmp_path)
    assert (row.kind, row.bytes, row.op) == ("unknown", None, "c10d::allreduce_")


def test_a_kernel_without_a_word_is_what_its_operator_asks_for(tmp_path: Path) -> None:
    drawing = machine().op("c10d::broadcast_", 1, 20).op("record_param_comms", 2, 10)
    drawing.launch("hipLaunchKernel", 3, 2, corr=1).kernel(GENERIC, 30, 10, corr=1)
    drawing.kernel(GENERIC, 50, 30)
    assert [(row.kind, row.op) for row in table(drawing, tmp_path)] == [
        ("unknown", None),
        ("broadcast", "c10d::broadcast_"),
    ]


@pytest.mark.parametrize(
    "devices, world, ranks, one_machine",
    [
        (8, 16, list(range(8)), True),
        (8, 16, list(range(16)), False),
        (8, 16, [0, 8], False),
        (1, 8, list(range(8)), None),
        (8, 8, list(range(8)), True),
    ],
)
def test_machines_are_told_by_ranks(
    tmp_path: Path, devices: int, world: int, ranks: list[int], one_machine: bool | None
) -> None:
    told = {**asked("allreduce", 1 << 20, size=len(ranks)), "Process Group Ranks": str(ranks)}
    (row,) = table(machine(devices, world).kernel(GENERIC, 0, 10, args=told), tmp_path)
    assert row.one_machine is one_machine
    assert (row.link is None) == (one_machine is not True)


def test_without_a_group_all_ranks_are_meant_if_they_fit(tmp_path: Path) -> None:
    many = machine(8, 16)
    many.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 0, 10)
    (row,) = table(many, tmp_path)
    assert (row.group_size, row.one_machine, row.bytes) == (None, None, None)


def test_collectives_of_the_host(tmp_path: Path) -> None:
    drawing = machine(1, 2).annotation(
        "gloo:all_reduce", 10, 100, args={"Input Dims": [[1000]], "Input type": ["float"]}, thread=9
    )
    (row,) = table(drawing, tmp_path)
    assert (row.kind, row.backend, row.bytes, row.total_ns, row.link) == (
        "all-reduce",
        "gloo",
        4000,
        100_000,
        None,
    )


def test_what_is_outside_of_steps_and_no_collective_does_not_count(tmp_path: Path) -> None:
    drawing = machine().launch("x", 1, 1, corr=1).kernel("gemm", 2, 10, corr=1)
    assert table(drawing.kernel(GENERIC, 5000, 10), tmp_path) == []


@pytest.mark.parametrize(
    "name, kind",
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "all-reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all-gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send-receive"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)", "all-reduce"),
        ("multimem_all_reduce_kernel", "all-reduce"),
        ("void deep_ep::intranode::dispatch<8, 768>(...)", "all-to-all"),
        (GENERIC, None),
    ],
)
def test_names_of_kernels(name: str, kind: str | None) -> None:
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize(
    "name, kind",
    [
        ("c10d::_allgather_base_", "all-gather"),
        ("_c10d_functional::all_to_all_single", "all-to-all"),
        ("nccl:_reduce_scatter_base", "reduce-scatter"),
        ("nccl:reduce", "reduce"),
        ("gloo:all_reduce", "all-reduce"),
        ("reduce_scatter_tensor_coalesced", "reduce-scatter"),
        ("send", "send-receive"),
        ("wait", None),
        ("coalesced", None),
        (None, None),
    ],
)
def test_names_of_operations(name: str | None, kind: str | None) -> None:
    assert kind_of_operation(name) == kind


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all-reduce", 8) == 1.75
    assert bus_factor("all-gather", 8) == bus_factor("all-to-all", 8) == 0.875
    assert bus_factor("broadcast", 8) == bus_factor("send-receive", 2) == 1
    assert bus_factor("all-reduce", 1) is bus_factor("all-reduce", None) is bus_factor("unknown", 8) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["verdicts/torchrec_a100.json.gz", "hta_nccl_data.json.gz", "ranks/ddp_mi300_4/rank0.json.gz"]
)
def test_exposed_parts_are_those_of_the_device(name: str, sample: Callable[[str], Path]) -> None:
    """One stream of collectives: what `devices` calls exposed is exactly what is here."""
    trace = open_shared(sample(name))
    whole = sum(row.exposed_communication_ns for row in devices(trace) if row.window == "steps")
    assert sum(row.exposed_ns for row in collective_kinds(trace)) == pytest.approx(whole, rel=0.05)
