"""Calls in which the host waits: which they are, how long, and what the device did then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.oracle import RUNTIME, Oracle
from tests.samples import open_shared

from stepscope.analyses.host_syncs import HostSync, host_syncs
from stepscope.opening import open_trace
from stepscope.simulation.device_calls import call_names
from stepscope.tables import Table


def table(drawing: Drawing, tmp_path: Path, **options: Any) -> Table[HostSync]:
    return host_syncs(open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path), **options)


def two_steps() -> Drawing:
    """Two steps of 100, in each a scalar is read: the device ends at 30, and has work again from 70 on.

    The call waits from 20 to 35. After the steps the profiler waits, too.
    """
    drawing = Drawing()
    for step, at in ((1, 0), (2, 100)):
        drawing.mark(step, at, 100).frame("train.py(9): loop", at, 95)
        drawing.launch("cudaLaunchKernel", at + 1, 2, corr=2 * step).kernel("a", at + 5, 25, corr=2 * step)
        drawing.op("aten::item", at + 18, 20).op("aten::_local_scalar_dense", at + 19, 18)
        drawing.launch("cudaStreamSynchronize", at + 20, 15)
        drawing.launch("cudaLaunchKernel", at + 60, 2, corr=2 * step + 1)
        drawing.kernel("b", at + 70, 30, corr=2 * step + 1)
    return drawing.launch("cudaDeviceSynchronize", 201, 50)


def test_by_hand(tmp_path: Path) -> None:
    found = table(two_steps(), tmp_path)
    (row,) = found
    assert (row.call, row.op) == ("cudaStreamSynchronize", "aten::_local_scalar_dense")
    assert row.user_frame == "train.py(9): loop"
    assert (row.calls, row.per_step, row.waited_ns, row.longest_ns) == (2, 1, 30_000, 15_000)
    # Idle from 30 to 70, twice.
    assert (row.gaps, row.starved_ns, row.devices) == (2, 80_000, "0")
    assert (row.waited_share, row.starved_share) == (30 / 200, 80 / 200)
    assert (row.step, row.start_ns) == (1, 20_000)
    assert row.blame == "aten::item → aten::_local_scalar_dense → cudaStreamSynchronize → 40.0 µs"
    assert found.notes == ("Left out: the profiler's own cudaDeviceSynchronize when it stopped (50.0 µs).",)


def test_single_calls(tmp_path: Path) -> None:
    drawing = two_steps().launch("cudaEventSynchronize", 150, 3)
    found = [(row.call, row.step, row.calls, row.waited_ns) for row in table(drawing, tmp_path, longest=2)]
    assert found == [("cudaStreamSynchronize", 1, 1, 15_000), ("cudaStreamSynchronize", 2, 1, 15_000)]
    assert len(table(drawing, tmp_path, longest=9)) == 3


def test_a_call_of_the_user_after_the_steps_is_not_the_profilers(tmp_path: Path) -> None:
    # Something is launched after it, so it was not the profiler that waited.
    drawing = two_steps()
    drawing.launch("cudaLaunchKernel", 260, 1, corr=9).kernel("c", 262, 1, corr=9)
    found = table(drawing, tmp_path)
    assert [row.call for row in found] == ["cudaStreamSynchronize"]
    assert found.notes == ("Outside the marks of steps: 1 call, waited 50.0 µs.",)


def test_a_call_inside_an_operator_is_not_the_profilers(tmp_path: Path) -> None:
    drawing = two_steps().op("aten::mm", 200, 60)
    assert not [note for note in table(drawing, tmp_path).notes if "profiler" in note]


PAGEABLE = [
    # Name, bytes, call, copy (start and end): does the call wait?
    ("Memcpy DtoH (Device -> Pageable)", 4, (10, 30), (20, 25), True),
    ("Memcpy DtoH (Device -> Pageable)", 4, (10, 24), (20, 25), False),
    ("Memcpy DtoH (Device -> Pinned)", 4, (10, 30), (20, 25), False),
    ("Memcpy HtoD (Pageable -> Device)", 1 << 20, (10, 30), (15, 33), True),
    ("Memcpy HtoD (Pageable -> Device)", 1 << 20, (10, 20), (15, 33), False),
    ("Memcpy HtoD (Pageable -> Device)", 1 << 10, (10, 30), (15, 20), False),
    ("Memcpy HtoD (Pinned -> Device)", 1 << 20, (10, 30), (15, 20), False),
]


@pytest.mark.parametrize("name,n_bytes,call,copy,waits", PAGEABLE)
def test_copies_of_pageable_memory(
    name: str, n_bytes: int, call: tuple[int, int], copy: tuple[int, int], waits: bool, tmp_path: Path
) -> None:
    drawing = Drawing().mark(1, 0, 50).launch("cudaMemcpyAsync", call[0], call[1] - call[0], corr=1)
    drawing.memcpy(name, copy[0], copy[1] - copy[0], corr=1, args={"bytes": n_bytes})
    assert [row.call for row in table(drawing, tmp_path)] == (["cudaMemcpyAsync"] if waits else [])


WAITS = (
    "cudaStreamSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpy2D cudaMemcpyToSymbol "
    "hipMemcpyWithStream hipStreamSynchronize hipMemcpy cuMemcpyDtoH_v2 cuStreamSynchronize urQueueFinish"
)
WAITS_FOR_ALL = "cudaDeviceSynchronize hipDeviceSynchronize cuCtxSynchronize"
FREES = "cudaFree hipFree cudaFreeHost hipHostFree cuMemFree_v2"
ALLOCATES = "cudaMalloc cudaMallocAsync cudaHostAlloc cudaFreeAsync hipMalloc hipExtMallocWithFlags cuMemMap"
LAUNCHES = (
    "cudaLaunchKernel cuLaunchKernelEx cudaGraphLaunch hipModuleLaunchKernel cudaMemcpyAsync cuMemsetD8"
)
OTHERS = (
    "cudaEventRecord cudaStreamWaitEvent cudaEventQuery cudaStreamIsCapturing cudaFuncGetAttributes INVALID "
    "cuMemGetInfo_v2 cudaMemGetInfo cudaHostGetDevicePointer"
)


def test_names(tmp_path: Path) -> None:
    everything = [WAITS, WAITS_FOR_ALL, FREES, ALLOCATES, LAUNCHES, OTHERS]
    drawing = Drawing()
    for number, name in enumerate(name for names in everything for name in names.split()):
        drawing.launch(name, number, 1)
    names = call_names(open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path))
    assert set(names.waiting) == {*WAITS.split(), *WAITS_FOR_ALL.split()}
    assert set(names.freeing) == set(FREES.split())
    assert set(names.allocating) == {*FREES.split(), *ALLOCATES.split()}
    copies = {name for name in WAITS.split() if "Memcpy" in name}  # they wait, and they launch
    assert set(names.launching) == {*LAUNCHES.split(), *copies}
    assert set(names.device_waiting) == set(WAITS_FOR_ALL.split())


def test_nothing_to_wait_for(tmp_path: Path) -> None:
    found = table(Drawing().mark(1, 0, 10).op("aten::mm", 0, 1), tmp_path)
    assert (len(found), found.notes) == (0, ("No calls into a device's runtime in the profile.",))


def test_no_call_that_waits(tmp_path: Path) -> None:
    found = table(Drawing().mark(1, 0, 10).launch("cudaEventRecord", 0, 1), tmp_path)
    assert (len(found), found.notes) == (0, ("No call waited for the device in a step.",))


# ---------------------------------------------------------------- real profiles


REAL = [
    "h200_rl_churn.pt.trace.json.gz",
    "h200_ddp_gloo_rank0.pt.trace.json.gz",
    "hta_nccl_data.json.gz",
    "hta_sampled_rank-0.json.gz",
    "tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_calls_as_in_the_file(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample(name)
    oracle = Oracle.of(path)
    marks = [mark.span for mark, _, _ in oracle.windows]
    calls: Counter[str] = Counter()
    waited: Counter[str] = Counter()
    for event in oracle.events:
        named = event.name.endswith("Synchronize") and event.category in RUNTIME
        if named and any(start <= event.start < end for start, end in marks):
            calls[event.name] += 1
            waited[event.name] += event.dur
    counted: Counter[str] = Counter()
    found_ns: Counter[str] = Counter()
    for row in host_syncs(open_shared(path)):
        if row.call and row.call.endswith("Synchronize"):
            counted[row.call] += row.calls
            found_ns[row.call] += row.waited_ns
    assert (counted, found_ns) == (calls, waited)
    assert calls or name.startswith("hta_sampled")


def test_a_scalar_read_per_layer(sample: Callable[[str], Path], tmp_path: Path) -> None:
    (row,) = host_syncs(open_shared(sample("h200_slow_item.pt.trace.json.gz")))
    assert (row.calls, row.per_step, row.call) == (100, 10, "cudaStreamSynchronize")
    assert row.user_frame == "capture.py(85): forward"
    assert row.starved_ns > 8 * row.waited_ns


def test_batches_copied_from_pageable_memory(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """64 MiB a step: the call holds the host for most of the step, though its name says Async."""
    rows = list(host_syncs(open_shared(sample("h200_prefetch_serial.pt.trace.json.gz"))))
    assert [(row.call, row.op, row.calls) for row in rows] == [
        ("cudaMemcpyAsync", "aten::copy_", 6),
        ("cudaStreamSynchronize", "aten::copy_", 6),
    ]
    assert (rows[0].waited_share or 0) > 0.7


def test_amd(sample: Callable[[str], Path], tmp_path: Path) -> None:
    found = host_syncs(open_shared(sample("hta_amd_mi250.json.gz")))
    assert [(row.call, row.calls) for row in found] == [("hipMemcpyWithStream", 2)]
    assert found.notes[0].startswith("Left out: the profiler's own hipDeviceSynchronize")
