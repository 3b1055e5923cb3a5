"""Compiled code: drawn by hand, read off real profiles, and recorded with the torch that is installed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.compilations import Compilation, compilations
from stepscope.analyses.compiled_regions import CompiledRegion, compiled_regions
from stepscope.store.trace import Trace

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
COMPILED = [
    "h200_compile_default.pt.trace.json.gz",
    "hta_triton.json.gz",
    "tl_b200_eager_trace.json.gz",
    "tl_torch_compile_triton_trace.json.gz",
]
AUTOTUNING = "CachingAutotuner.benchmark_all_configs (dynamo_timed)"


def broken() -> Drawing:
    """Two steps. Step 1 runs region 0/0 with 1/0 inside; step 2 compiles frame 0 anew and runs it as 0/1.

    Region 0/0 (30 µs, 10 of them in 1/0) launches a kernel of 7 µs, and after 1/0 a graph of two times 2 µs;
    its backward (10 µs) one of 11 µs. Region 1/0 launches 3 µs. Compiling takes 20 µs, of which kernels are
    timed for 4; region 0/1 (10 µs) times kernels for 2 more, and launches 1 µs. One run is after the steps.
    """
    drawing = Drawing().mark(1, 0, 100).mark(2, 100, 100)
    drawing.op("Torch-Compiled Region: 0/0", 10, 30)
    drawing.op("CompiledFunction", 12, 8, args={"Sequence number": 5, "Fwd thread id": 0})
    drawing.launch("cudaLaunchKernel", 13, 1, corr=1).kernel("a", 20, 7, corr=1)
    drawing.op("Torch-Compiled Region: 1/0", 25, 10)
    drawing.launch("cudaLaunchKernel", 26, 1, corr=2).kernel("b", 30, 3, corr=2)
    drawing.launch("cudaGraphLaunch", 37, 1, corr=3).kernel("c", 40, 2, corr=3).kernel("d", 42, 2, corr=3)
    backward = {"Sequence number": 5, "Fwd thread id": 1}
    drawing.op("CompiledFunctionBackward", 50, 10, thread=2, args=backward)
    drawing.launch("cudaLaunchKernel", 52, 1, corr=4, thread=2).kernel("e", 60, 11, corr=4)
    drawing.launch("cudaLaunchKernel", 80, 1, corr=9).kernel("outside", 85, 50, corr=9)
    drawing.op("_compile.compile_inner (dynamo_timed)", 105, 20).op("bytecode_tracing (dynamo_timed)", 106, 3)
    drawing.op(AUTOTUNING, 110, 4)
    drawing.op("Torch-Compiled Region: 0/1", 130, 10).op(AUTOTUNING, 133, 2)
    drawing.launch("cudaLaunchKernel", 134, 1, corr=6).kernel("timed", 136, 1, corr=6)
    drawing.launch("cudaLaunchKernel", 136, 1, corr=5).kernel("f", 140, 1, corr=5)
    return drawing.op("Torch-Compiled Region: 0/1", 210, 10)


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(str(drawing.write(folder / "drawn.json")), store=folder / "store")


def test_regions_of_the_steps(tmp_path: Path) -> None:
    table = compiled_regions(opened(broken(), tmp_path))
    assert list(table) == [
        CompiledRegion("0/0", "0", None, 1, 1, 0.5, 1, 30_000, 20_000, 3, 11_000, 1, 1, 10_000, 1, 11_000, 0),
        CompiledRegion("0/1", "0", None, 1, 1, 0.5, 0, 10_000, 8_000, 1, 1_000, 0, 0, 0, 0, 0, 22_000),
        CompiledRegion("1/0", "1", "0/0", 1, 1, 0.5, 0, 10_000, 10_000, 1, 3_000, 0, 0, 0, 0, 0, 0),
    ]
    (note,) = table.notes
    assert note.startswith(
        "Region 0/0: 1 runs of other regions inside 1 of its own. A graph break is suspected"
    )


def test_compiling_in_the_steps(tmp_path: Path) -> None:
    assert list(compilations(opened(broken(), tmp_path))) == [
        Compilation(2, "recompilation", "0/1", 1, 16_000, 16_000, 105_000),
        Compilation(2, "autotuning", "0/1", 2, 6_000, 4_000, 110_000),
    ]


def test_the_number_that_torch_says_is_believed(tmp_path: Path) -> None:
    # Compiled for backward, on a thread that runs no region; and before the first step.
    drawing = Drawing().mark(3, 50, 50).op("dynamo", 10, 20)
    drawing.annotation("dynamo_data: is_backward=True, compile_id=4/0", 11, 1)
    drawing.op("_compile.compile_inner (dynamo_timed)", 12, 17).op("Torch-Compiled Region: 7/0", 40, 5)
    drawing.op("CUDAGraphNode.record (dynamo_timed)", 60, 10)
    drawing.launch("cudaStreamBeginCapture", 62, 1).launch("cudaStreamEndCapture", 65, 1)
    drawing.launch("cudaStreamBeginCapture", 72, 1).launch("cudaStreamEndCapture", 75, 1)
    drawing.frame("triton/compiler/compiler.py(229): compile", 80, 4)
    drawing.frame("triton/runtime/autotuner.py(101): _bench", 90, 3)
    table = compilations(opened(drawing, tmp_path))
    assert list(table) == [
        Compilation(None, "compilation", "4/0", 1, 20_000, 20_000, 10_000),
        Compilation(3, "capture", None, 2, 14_000, 10_000, 60_000),
        Compilation(3, "compilation", None, 1, 4_000, 4_000, 80_000),
        Compilation(3, "autotuning", None, 1, 3_000, 3_000, 90_000),
    ]


def test_parts_compiled_side_by_side_are_no_break(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    for frame in (0, 1, 2):
        drawing.op(f"Torch-Compiled Region: {frame}/0", 10 * frame, 10)
    table = compiled_regions(opened(drawing, tmp_path))
    assert [(row.region, row.regions_inside, row.inside) for row in table] == [
        ("0/0", 0, None),
        ("1/0", 0, None),
        ("2/0", 0, None),
    ]
    (note,) = table.notes
    assert note.startswith("3 frames were compiled side by side: on purpose")


def test_graphs_stand_for_regions_where_torch_marks_none(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    drawing.annotation("## Call CompiledFxGraph fab12 ##", 5, 20)
    drawing.launch("cudaLaunchKernel", 6, 1, corr=1).kernel("k", 10, 4, corr=1)
    (row,) = compiled_regions(opened(drawing, tmp_path))
    assert (row.region, row.frame, row.calls, row.device_ns) == ("graph fab12", None, 1, 4_000)


def test_a_region_compiled_in_a_step_and_not_run_there(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 30).op("_compile.compile_inner (dynamo_timed)", 5, 20)
    drawing.op("Torch-Compiled Region: 0/2", 40, 10)
    (row,) = compiled_regions(opened(drawing, tmp_path))
    assert (row.region, row.calls, row.host_ns, row.compiling_ns) == ("0/2", 0, 0, 20_000)


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_profile_has_an_answer(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    table = compiled_regions(trace)
    assert bool(len(table)) == (name in COMPILED)
    assert len(table) or table.notes == (
        "No compiled regions: torch.compile was not used, or torch did not mark it.",
    )
    assert not len(compilations(trace))
    assert compilations(trace).notes[0].startswith("Nothing was compiled in this profile")


def test_what_a_real_region_launched_by_another_way(sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample("h200_compile_default.pt.trace.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    runs: dict[str, list[dict[str, Any]]] = {"Torch-Compiled Region: 0/0": [], "CompiledFunctionBackward": []}
    calls = {}
    for event in events:
        if event.get("name") in runs:
            runs[event["name"]].append(event)
        elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls[event["args"]["correlation"]] = event
    expected = []
    for kind in runs.values():
        work = [
            event
            for event in events
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            and (call := calls.get(event["args"]["correlation"])) is not None
            and any(
                run["tid"] == call["tid"] and run["ts"] <= call["ts"] < run["ts"] + run["dur"] for run in kind
            )
        ]
        expected.append((len(kind), len(work), sum(event["dur"] for event in work) * 1000))
    (row,) = compiled_regions(open_shared(path))
    assert expected == [
        (row.calls, row.device_events, row.device_ns),
        (row.backward_calls, row.backward_device_events, row.backward_device_ns),
    ]


def test_what_a_gpu_recorded(tmp_path: Path) -> None:
    """A graph break; in step 4 a new batch size, and with it compilers, and 600 kernels that are timed."""
    trace = open_shared(RECORDINGS / "compiled.pt.trace.json.gz")
    rows = {row.region: row for row in compiled_regions(trace)}
    assert {name: (row.calls, row.backward_calls, row.inside) for name, row in rows.items()} == {
        "0/0": (3, 3, None),
        "1/0": (3, 3, "0/0"),
        "0/1": (1, 1, None),
        "1/1": (1, 1, "0/1"),
    }
    # Of either version a run launches as much.
    for frame in ("0", "1"):
        usual, anew = rows[f"{frame}/0"], rows[f"{frame}/1"]
        assert usual.device_events == 3 * anew.device_events > 0
        assert usual.backward_device_events == 3 * anew.backward_device_events > 0
    found = {(one.step, one.kind, one.region): one.times for one in compilations(trace)}
    # Forward and backward of each half.
    assert found == {
        (4, "recompilation", "0/1"): 2,
        (4, "recompilation", "1/1"): 2,
        (4, "autotuning", "0/1"): 1,
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_this_torch_records(torch: Any, tmp_path: Path) -> None:
    """A graph break, and a second shape in step 2 that compiles both halves anew."""
    from torch.profiler import ProfilerActivity, profile, schedule

    weights = torch.ones(4, 4, requires_grad=True)

    def forward(rows: Any) -> Any:
        hidden = torch.relu(rows @ weights)
        torch._dynamo.graph_break()
        return (hidden * 2).sum()

    torch._dynamo.reset()
    run = torch.compile(forward, backend="aot_eager", dynamic=False)
    run(torch.ones(2, 4)).backward()
    path = tmp_path / "recorded.json"
    plan = schedule(wait=0, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for step in range(4):
            run(torch.ones(3 if step == 2 else 2, 4)).backward()
            if step < 3:
                profiler.step()
    profiler.export_chrome_trace(str(path))
    torch._dynamo.reset()

    trace = stepscope.open(str(path), store=tmp_path / "store")
    rows = {row.region: row for row in compiled_regions(trace)}
    assert {name: (row.calls, row.inside) for name, row in rows.items()} == {
        "0/0": (2, None),
        "1/0": (2, "0/0"),
        "0/1": (1, None),
        "1/1": (1, "0/1"),
    }
    assert (rows["0/0"].regions_inside, rows["0/1"].regions_inside) == (2, 1)
    assert rows["0/0"].backward_calls == 2
    compiled = list(compilations(trace))
    assert [(one.step, one.kind, one.region) for one in compiled] == [
        (2, "recompilation", "0/1"),
        (2, "recompilation", "1/1"),
    ]
    assert rows["0/1"].compiling_ns == compiled[0].total_ns > 0
    inside = rows["1/1"].host_ns + compiled[1].longest_ns  # the other is for backward, and runs there
    assert 0 < rows["0/1"].host_self_ns <= rows["0/1"].host_ns - inside
