from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, facts, mean_step

from stepscope.analyses.allocations import Allocation
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.compiled_regions import CompiledRegion
from stepscope.analyses.cpu_pauses import CpuPause
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.launches import Launch
from stepscope.analyses.loops import Loop
from stepscope.analyses.many_joins import ManyJoins
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.read_loops import ReadLoops
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.launch_bound import launch_bound

STEP = mean_step(busy_ns=1.0 * MS, starved_ns=8.0 * MS, latency_ns=1.0 * MS, waiting_ns=1.0 * MS)
# 10 steps with 100 launches each; operators take the host 50 µs for one, the calls alone 5 µs.
LAUNCH = {"call": "cudaLaunchKernel", "calls": 1_000, "work_events": 1_000, "short_kernels": 900,
          "host_ns": 5 * MS, "work_median_ns": 4_000.0}  # fmt: skip
OP = {"name": "aten::add", "phase": "forward", "calls": 1_000, "host_ns": 50 * MS, "launches": 1_000}
GAPS = (
    {"device": "0", "side": "host", "spent_in": "host op", "idle_ns": 40 * MS, "gaps": 900},
    {"device": "0", "side": "host", "spent_in": "Python between ops", "idle_ns": 20 * MS, "gaps": 500},
    {"device": "0", "side": "host", "spent_in": "dataloader", "idle_ns": 10 * MS, "gaps": 10},
    {"device": "0", "side": "launch", "spent_in": "launch latency", "idle_ns": 10 * MS, "gaps": 1_000},
)
PHASES = (
    {"phase": "forward", "starved_ns": 60 * MS, "share": 0.75},
    {"phase": "optimizer", "starved_ns": 20 * MS, "share": 0.25},
)
READ = {"call": "cudaStreamSynchronize", "op": "aten::nonzero", "calls": 30, "starved_ns": 1 * MS}


def advised(  # each table by its name; what is not given is quiet
    step: MeanStep = STEP,
    told: Facts | None = None,
    *,
    thresholds: dict[str, float] | None = None,
    **rows: Any,
) -> Advice | None:
    def table(row: type[Any], name: str, *quiet: dict[str, Any]) -> Any:
        return drawn(row, *rows.get(name, quiet))

    return launch_bound(
        step,
        told or facts(),
        table(IdleGap, "gaps", *GAPS),
        table(Launch, "launches", LAUNCH),
        table(StarvingPhase, "phases", *PHASES),
        table(HostSync, "syncs"),
        table(StepOp, "ops", OP),
        table(StepClass, "classes"),
        table(CompiledRegion, "regions"),
        table(Allocation, "allocations"),
        table(Iteration, "iterations"),
        table(DeviceMemory, "memory"),
        table(KernelFamily, "families"),
        table(Loop, "loops"),
        table(CpuPause, "pauses"),
        table(ReadLoops, "reading"),
        table(ManyJoins, "joins"),
        table(Compilation, "compilations"),
        **(thresholds or {}),
    )


def test_it_fires_and_graphs_leave_little_between_kernels() -> None:
    advice = assert_bounded(advised(), STEP)
    # 4 ms in operators, 2 ms between, 1 ms of latency, less 100 pauses; a quarter is the optimizer's.
    assert advice.saving.starved_ns == pytest.approx((0.75 * 6.9 * MS, 6.97 * MS))
    assert 'mode="reduce-overhead"' in advice.fix
    assert "fused=True" in advice.fix
    assert advice.evidence["launches_per_step"] == 100
    assert advice.evidence["host_per_launch_ns"] == 50_000
    assert advice.evidence["graph_ready"] is True


def test_no_graph_replaces_a_loop_that_reads_numbers() -> None:
    loop = {"loops": 10, "reads": 300, "ops": 3000, "launches": 1000, "host_ns": 50 * MS, "device_ns": MS}
    advice = assert_bounded(advised(reading=(loop,)), STEP)
    assert advice.saving.starved_ns == pytest.approx((0.5 * 0.75 * 6.9 * MS, 0.5 * 6.97 * MS))


def test_lists_of_many_tensors_are_no_launches_that_a_graph_replaces() -> None:
    joins = {"host_ns": 20 * MS, "before_ns": 10 * MS}  # 3 of the 10 ms of a step
    stack = {"name": "aten::stack", "phase": "forward", "calls": 50, "launches": 800}
    advice = assert_bounded(advised(joins=(joins,), ops=(OP, stack)), STEP)
    assert advice.saving.starved_ns[1] == pytest.approx(0.7 * 6.97 * MS)
    assert "batches of other tensors each time (torch.stack)" in advice.because


def test_python_counts_as_far_as_operators_do() -> None:
    gaps = (*GAPS[:1], {**GAPS[1], "idle_ns": 70 * MS}, *GAPS[2:])
    step = mean_step(step_ns=20.0 * MS, busy_ns=1.0 * MS, starved_ns=13.0 * MS)
    assert assert_bounded(advised(step, gaps=gaps), step).saving.starved_ns[1] == pytest.approx(8.97 * MS)


def test_what_stands_in_the_way_of_graphs_is_said_and_lowers_the_bound() -> None:
    gaps = ({**GAPS[0], "drained_by": "cudaStreamSynchronize"}, *GAPS[1:])
    advice = assert_bounded(advised(syncs=(READ,), gaps=gaps), STEP)
    # Without what follows waits, and with the calls still made: 2 ms less 0.5 ms.
    assert advice.saving.starved_ns == pytest.approx((0.75 * 1.5 * MS, 6.97 * MS))
    assert "wait for the GPU (3 a step)" in advice.because
    assert "reduce-overhead" not in advice.fix
    classes = ({"batch": "[8, 128]"}, {"batch": "[8, 96]"})
    advice = assert_bounded(advised(classes=classes), STEP)
    assert "batches of 2 shapes" in advice.because
    assert "no-cudagraphs" in advice.fix
    driver = {"source": "driver", "call": "cudaMalloc", "per_step": 2.0}
    assert "the driver (2 a step)" in assert_bounded(advised(allocations=(driver,)), STEP).because
    gloo = facts(backend="gloo", world_size=2)
    assert "gloo" in assert_bounded(advised(told=gloo), STEP).because


def test_room_in_memory_is_offered_for_a_larger_batch() -> None:
    assert (
        "batch_size *= 2"
        in assert_bounded(advised(memory=({"device": "0", "peak_bytes": 1 << 30},)), STEP).fix
    )
    assert (
        "batch_size"
        not in assert_bounded(advised(memory=({"device": "0", "peak_bytes": 100 << 30},)), STEP).fix
    )


def test_it_is_silent_where_the_device_leads_or_launches_are_few() -> None:
    assert advised(gaps=GAPS[2:3]) is None
    assert advised(mean_step(device=None)) is None
    assert advised(launches=({**LAUNCH, "calls": 70, "work_events": 70},)) is None
    assert advised(launches=({**LAUNCH, "work_median_ns": 60_000.0},)) is None
    assert advised(thresholds={"least_share": 0.8}) is None
    assert advised(thresholds={"least_launches": 101}) is None
    assert advised(thresholds={"most_starved_ns": 50_000}) is None


def test_it_leaves_graphs_compiled_code_and_decoding_to_their_rules() -> None:
    assert advised(iterations=({"launched_by": "graph"},)) is None
    assert advised(regions=({"device_events": 600},)) is None
    assert "eager_decode" in launch_bound.yields_to


def test_compiling_does_not_count() -> None:
    advice = assert_bounded(advised(regions=({"device_events": 10, "compiling_ns": 30 * MS},)), STEP)
    assert advice.saving.starved_ns[1] == pytest.approx(3.97 * MS)


def test_once_the_host_is_out_of_the_way_fusing_counts() -> None:
    families = (
        {"family": "elementwise", "exclusive_ns": 4 * MS},
        {"family": "matmul", "exclusive_ns": 6 * MS},
    )
    assert assert_bounded(advised(families=families), STEP).saving.device_ns == (0.0, 0.4 * MS)
    busy = mean_step(busy_ns=5.0 * MS, starved_ns=5.0 * MS)
    assert assert_bounded(advised(busy, gaps=GAPS[:1], families=families), busy).saving.device_ns == (
        0.0,
        0.0,
    )


def test_loading_data_does_not_count_even_where_it_uses_operators() -> None:
    phases = (
        {"phase": "dataloader", "starved_ns": 60 * MS, "share": 0.5},
        {"phase": "forward", "share": 0.5},
    )
    assert assert_bounded(advised(phases=phases), STEP).saving.starved_ns[1] == pytest.approx(3.97 * MS)


def test_a_loop_that_could_be_one_call_is_another_finding() -> None:
    cells = {"repeats": 48, "ops": 1, "contains": "aten::gru_cell", "first_ops": "aten::gru_cell",
             "launch_share": 0.9}  # fmt: skip
    assert advised(loops=(cells | {"host_share": 0.6},)) is None
    assert advised(loops=(cells | {"host_share": 0.4},)) is not None


def test_python_between_operators_on_the_cpu_launches_nothing() -> None:
    pause = {"device": "0", "idle_ns": 15 * MS, "computing_ns": 5 * MS}
    sounds = {
        "name": "aten::stft",
        "phase": "forward",
        "calls": 10,
        "host_ns": 5 * MS,
        "computing_ns": 5 * MS,
        "starved_ns": 5 * MS,
    }
    advice = assert_bounded(advised(pauses=(pause,), ops=(OP, sounds)), STEP)
    assert advice.saving.starved_ns[1] == pytest.approx(5.47 * MS)  # 0.5 ms in it, 1 ms around it
    once = assert_bounded(advised(pauses=(pause,)), STEP)  # no operator computes as a rule
    assert once.saving.starved_ns[1] == pytest.approx(6.97 * MS)


def test_what_is_captured_into_a_graph_waits_for_nothing() -> None:
    capture = {"step": 1, "kind": "capture", "total_ns": 60 * MS}
    assert advised(compilations=(capture,)) is None
    assert advised(compilations=({**capture, "total_ns": 40 * MS},)) is not None
    assert advised(compilations=({**capture, "step": None},)) is not None
