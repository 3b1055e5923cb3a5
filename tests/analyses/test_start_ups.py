"""What a run does once: found by name and by length, and not mistaken for blocked or busy calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.drawing import Drawing
from tests.samples import open_shared, reported

import stepscope
from stepscope.analyses.start_ups import start_ups
from stepscope.analyses.trust import trust
from stepscope.store.trace import Trace

LAUNCH = "cudaLaunchKernel"


def program(steps: int = 2) -> Drawing:
    """Ten launches a step, each of 5 µs and followed by its kernel at once."""
    drawing = Drawing()
    for number in range(steps * 10):
        at = number * 1000
        if number % 10 == 0:
            drawing.mark(number // 10, at, 10_000).frame("train.py(3): step", at, 10_000)
        drawing.op("aten::mm", at + 5, 100).launch(LAUNCH, at + 10, 5, corr=number)
        drawing.kernel("gemm", at + 20, 50, corr=number)
    return drawing


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def found(drawing: Drawing, folder: Path) -> list[tuple[int | None, str, str | None, int, int]]:
    return [
        (row.step, row.kind, row.call, row.times, row.total_ns) for row in start_ups(opened(drawing, folder))
    ]


def test_nothing(tmp_path: Path) -> None:
    assert found(program(), tmp_path) == []


@pytest.mark.parametrize(
    "call", ["cuModuleLoadData", "cuLibraryLoadData", "hipModuleLoadDataEx", "cudaLibraryLoadData"]
)
def test_modules(call: str, tmp_path: Path) -> None:
    drawing = program().launch(call, 500, 200, cat="cuda_driver").launch(call, 10_500, 300, cat="cuda_driver")
    wanted = [(0, "code loading", call, 1, 200_000), (1, "code loading", call, 1, 300_000)]
    assert found(drawing, tmp_path) == wanted


def test_launching_from_a_module_is_no_loading(tmp_path: Path) -> None:
    drawing = program()
    for call in ("hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "cuModuleGetFunction"):
        drawing.launch(call, 500, 200)
    assert found(drawing, tmp_path) == []


def test_the_first_launch_of_a_kernel(tmp_path: Path) -> None:
    drawing = program().op("aten::relu", 10_400, 400_000, thread=2)
    drawing.launch(LAUNCH, 10_450, 331_000, corr=900, thread=2).kernel("relu", 341_455, 5, corr=900)
    # What the profiler says of it, and a module inside, are the same time.
    drawing.add({"ph": "X", "cat": "overhead", "name": "Lazy Function Loading", "pid": -1, "tid": 0}
                | {"ts": 10_500, "dur": 300_000})  # fmt: skip
    drawing.launch("cuModuleLoadData", 10_500, 1000, cat="cuda_driver", thread=2)
    trace = opened(drawing, tmp_path)
    (row,) = start_ups(trace)
    assert (row.step, row.kind, row.call, row.op) == (1, "code loading", LAUNCH, "aten::relu")
    assert (row.total_ns, row.longest_ns) == (331_000_000, 331_000_000)
    (doubt,) = (one for one in trust(trace) if one.what == "start-up")
    assert (doubt.count, doubt.effect_ns) == (1, 331_000_000)
    assert "code loading 331 ms" in doubt.explanation
    assert "profiler overhead" not in {one.what for one in trust(trace)}, "loading is none"


def test_a_launch_that_a_full_queue_blocks(tmp_path: Path) -> None:
    drawing = program().launch(LAUNCH, 10_450, 5000, corr=900, thread=2).kernel("relu", 18_600, 5, corr=900)
    assert found(drawing, tmp_path) == []


def test_a_long_launch_of_a_kernel_that_ran_before(tmp_path: Path) -> None:
    drawing = program().launch(LAUNCH, 10_450, 5000, corr=900, thread=2).kernel("gemm", 15_455, 5, corr=900)
    assert found(drawing, tmp_path) == []


@pytest.mark.parametrize(
    "call", ["cudaFree", "cudaGetDeviceCount", "cuInit", "hipInit", "cuDevicePrimaryCtxRetain"]
)
def test_calls_that_start_a_device(call: str, tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 900_000).launch(call, 5, 800_000)
    drawing.launch(LAUNCH, 850_000, 5, corr=1).kernel("gemm", 850_010, 50, corr=1)
    assert found(drawing, tmp_path) == [(0, "initialisation", call, 1, 800_000_000)]


def test_a_free_that_waits_for_the_device_is_none(tmp_path: Path) -> None:
    drawing = program().launch("cudaFree", 10_500, 9000)
    for number in range(5):
        drawing.launch("cudaFree", 19_600 + number * 10, 5)
    assert found(drawing, tmp_path) == []


def test_the_first_call_of_an_operator(tmp_path: Path) -> None:
    drawing = program(1).op("aten::conv", 20_000, 60_000).launch(LAUNCH, 70_000, 5, corr=500)
    drawing.kernel("conv", 70_010, 5, corr=500)
    for number in range(1, 5):
        at = 90_000 + number * 1000
        drawing.op("aten::conv", at, 100).launch(LAUNCH, at + 50, 5, corr=500 + number)
        drawing.kernel("conv", at + 60, 5, corr=500 + number)
    # One that launches nothing may just have more to do the first time.
    drawing.op("aten::resize", 200_000, 60_000)
    for number in range(1, 5):
        drawing.op("aten::resize", 270_000 + number * 1000, 100)
    assert found(drawing, tmp_path) == [(None, "first use", "aten::conv", 1, 59_995_000)]


Sample = Callable[[str], Path]


@pytest.mark.slow
def test_a_program_that_starts(sample: Sample) -> None:
    path = sample("hta_alexnet.json.gz")
    kinds = {row.kind: row.call for row in start_ups(open_shared(path))}
    assert set(kinds) == {"initialisation", "code loading", "first use"}
    report = reported(path)
    told = {one.id for one in report.findings}
    assert "start-up" in told
    assert not told & {"cpu-operators", "weight-casts"}, "copies to the device while it starts are neither"
    assert report.verdict.word == "unknown"
    assert "stepscope explain start-up" in {step.command for step in report.next_steps}
    spent = sum(row.total_ns for row in start_ups(open_shared(path)) if row.step is not None)
    left = report.overview.step_ns - spent
    assert all(one.gain.high_ns <= left for one in report.findings), "nobody promises start-up"
    (doubt,) = (one for one in report.trust if one.what == "start-up")
    assert doubt.effect_share is not None
    assert doubt.effect_share > 0.9
    assert "no other step" in doubt.explanation


@pytest.mark.slow
def test_loading_on_amd(sample: Sample) -> None:
    (row,) = start_ups(open_shared(sample("hta_amd_mi250.json.gz")))
    assert (row.kind, row.call, row.times) == ("code loading", "hipLaunchKernel", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200_resnet50.pt.trace", "hta_ns_resolution", "verdicts/two_v100"])
def test_programs_that_run(name: str, sample: Sample) -> None:
    assert len(start_ups(open_shared(sample(f"{name}.json.gz")))) == 0
