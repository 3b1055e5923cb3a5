from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts, mean_step

from stepscope.analyses.graph_replays import GraphReplay
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import NotKnown
from stepscope.findings.claims import Claim, Time
from stepscope.findings.rules.device_unfilled import device_unfilled

STEPS = drawn(Step, *[{"kernel_ns": 8 * MS}] * 10)
ONE_PASS = drawn(StepClass, {"steps": 10, "backward_passes": 1})
FOUR = drawn(StepClass, {"steps": 9, "backward_passes": 4}, {"steps": 1, "backward_passes": 7})
NO_OPS = drawn(StepOp)
NO_MEMORY = drawn(DeviceMemory)
NO_GRAPHS = drawn(GraphReplay)
LITTLE = drawn(DeviceMemory, {"device": "0", "peak_bytes": 1 << 30})


def kernel(blocks: int, total_ns: float = 80 * MS, calls: int = 4000, **told: object) -> dict[str, object]:
    times = {"total_ns": total_ns, "exclusive_ns": total_ns, "mean_ns": total_ns / calls, "calls": calls}
    return {"name": "gemm", "family": "matmul", "grid": f"[{blocks},1,1]", **times, **told}


def test_it_fires_where_multiprocessors_have_no_block() -> None:
    step = busy_pace()
    kernels = drawn(Kernel, kernel(33, 40 * MS), kernel(264, 40 * MS))
    advice = assert_bounded(
        device_unfilled(step, facts(), STEPS, kernels, ONE_PASS, NO_OPS, LITTLE, NO_GRAPHS), step
    )
    assert advice.saving.device_ns == (0.0, 4.0 * MS * 0.75)
    assert advice.saving.starved_ns == (0.0, 0.0)
    assert advice.title == "Kernels are too small for the GPU"
    assert advice.certainty == "possible"
    assert advice.evidence["filled_share"] == pytest.approx(0.625)
    assert advice.evidence["under_half_block_share"] == pytest.approx(0.5)
    assert "1.00 GiB of 140 GiB" in advice.fix
    assert advice.claims == {Claim(Time.DEVICE)}


def test_it_is_silent_where_the_device_is_filled() -> None:
    kernels = drawn(Kernel, kernel(1000))
    assert (
        device_unfilled(busy_pace(), facts(), STEPS, kernels, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS) is None
    )
    half = drawn(Kernel, kernel(120))
    assert device_unfilled(busy_pace(), facts(), STEPS, half, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS) is None
    fired = device_unfilled(
        busy_pace(), facts(), STEPS, half, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS, least_fill=0.95
    )
    assert fired is not None
    assert (
        device_unfilled(busy_pace(), facts(), STEPS, drawn(Kernel), ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS)
        is None
    )


def test_communication_does_not_count() -> None:
    kernels = drawn(Kernel, kernel(1000), kernel(16, 800 * MS, family="communication"))
    assert (
        device_unfilled(busy_pace(), facts(), STEPS, kernels, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS) is None
    )


def test_it_is_silent_where_that_is_next_to_nothing_of_the_step() -> None:
    short = drawn(Step, *[{"kernel_ns": 0.1 * MS}] * 10)
    kernels = drawn(Kernel, kernel(33, 1 * MS))
    assert (
        device_unfilled(mean_step(), facts(), short, kernels, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS) is None
    )
    fired = device_unfilled(
        mean_step(), facts(), short, kernels, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS, least_share=0.001
    )
    assert fired is not None


def test_short_kernels_that_the_device_waits_for_are_a_batch_too_small() -> None:
    step = mean_step(busy_ns=0.8 * MS, starved_ns=9.2 * MS, latency_ns=0.0)
    steps = drawn(Step, *[{"kernel_ns": 0.8 * MS}] * 10)
    kernels = drawn(Kernel, kernel(1000, 8 * MS, calls=4000))
    late = {"name": "aten::linear", "phase": "forward", "starved_ns": 40 * MS, "launches": 4000}
    model = drawn(StepOp, late | {"user_frame": "model.py(7): forward"})
    advice = assert_bounded(
        device_unfilled(step, facts(), steps, kernels, ONE_PASS, model, NO_MEMORY, NO_GRAPHS), step
    )
    assert advice.title == "The batch is too small for the GPU"
    assert advice.saving.device_ns == (0.0, 0.0)
    assert "a sample would take up to 20.0 % less time" in advice.because
    assert advice.locations[0].note == "4,000 launches in all steps"
    fewer = drawn(StepOp, late | {"starved_ns": 20 * MS})
    assert device_unfilled(step, facts(), steps, kernels, ONE_PASS, fewer, NO_MEMORY, NO_GRAPHS) is None
    fired = device_unfilled(
        step, facts(), steps, kernels, ONE_PASS, fewer, NO_MEMORY, NO_GRAPHS, starved_share=0.1
    )
    assert fired is not None
    busier = mean_step(busy_ns=1.1 * MS, starved_ns=8.9 * MS, latency_ns=0.0)
    assert device_unfilled(busier, facts(), steps, kernels, ONE_PASS, model, NO_MEMORY, NO_GRAPHS) is None
    fired = device_unfilled(
        busier, facts(), steps, kernels, ONE_PASS, model, NO_MEMORY, NO_GRAPHS, most_busy=0.2
    )
    assert fired is not None
    compiling = drawn(StepOp, late | {"launches": 10})
    assert device_unfilled(step, facts(), steps, kernels, ONE_PASS, compiling, NO_MEMORY, NO_GRAPHS) is None


def accumulation(updates: float) -> tuple[dict[str, object], ...]:
    return (
        {"name": "aten::linear", "phase": "forward", "starved_ns": 20 * MS, "launches": 4000},
        {"name": "aten::_fused_adamw_", "phase": "optimizer", "starved_ns": 10 * MS, "per_step": updates},
    )


def test_little_batches_of_one_step_are_known_to_fit_together() -> None:
    step = mean_step(latency_ns=0.0)
    once = kernel(66, 10 * MS, calls=10)
    long, short = kernel(33, 40 * MS, calls=400), kernel(1000, 10 * MS, calls=4000)
    ran = drawn(Kernel, long, short, once)
    steps = drawn(Step, *[{"kernel_ns": 6 * MS}] * 10)
    step_ops = drawn(StepOp, *accumulation(1.0))
    advice = assert_bounded(
        device_unfilled(step, facts(), steps, ran, FOUR, step_ops, LITTLE, NO_GRAPHS), step
    )
    # Each of them from four times to one; what runs once a step stays. The short one is filled.
    assert advice.saving.waited_ns == pytest.approx((4.0 * MS * 0.75, 5.0 * MS * 0.75))
    assert advice.saving.starved_ns == pytest.approx((2.0 * MS * 0.75, 4.0 * MS * 0.75))
    assert advice.certainty == "likely"
    assert "runs the model 4 times for one optimizer step" in advice.because
    assert advice.claims == {Claim(Time.DEVICE), Claim(Time.STARVED)}
    unknown = device_unfilled(step, facts(memory=False), steps, ran, FOUR, step_ops, NO_MEMORY, NO_GRAPHS)
    assert assert_bounded(unknown, step).certainty == "possible"


def test_passes_with_an_optimizer_each_are_steps_of_their_own() -> None:
    step = busy_pace()
    step_ops = drawn(StepOp, *accumulation(4.0))
    advice = device_unfilled(
        step, facts(), STEPS, drawn(Kernel, kernel(33)), FOUR, step_ops, LITTLE, NO_GRAPHS
    )
    assert assert_bounded(advice, step).evidence["passes_per_step"] == 1


def replays(per_step: int, work_ns: float, graph: int = 0) -> list[dict[str, object]]:
    one = {"device": "0", "graph": graph, "work_ns": work_ns}
    return [{**one, "step": step} for step in range(10) for _ in range(per_step)] + [{**one, "step": None}]


def test_replays_of_one_graph_may_fit_together() -> None:
    step = busy_pace(latency_ns=0.0)
    kernels = drawn(Kernel, kernel(33, 80 * MS, calls=800))
    graphs = drawn(GraphReplay, *replays(8, MS), *replays(1, 0.1 * MS, graph=1))
    advice = assert_bounded(
        device_unfilled(step, facts(), STEPS, kernels, ONE_PASS, NO_OPS, LITTLE, graphs), step
    )
    assert advice.saving.waited_ns == pytest.approx((0.0, 8.0 * MS * 7 / 8))
    assert advice.saving.starved_ns == pytest.approx((0.0, 0.1 * MS * 7 / 8))
    assert advice.certainty == "possible"
    assert "replays one graph 8 times" in advice.because
    assert "torch.cuda.graph" in advice.fix


def test_replays_that_choose_words_need_one_another() -> None:
    step = busy_pace()
    words = kernel(33, 80 * MS, calls=800) | {"name": "reduce_kernel<ArgMaxOps<float>>"}
    graphs = drawn(GraphReplay, *replays(8, MS))
    advice = device_unfilled(step, facts(), STEPS, drawn(Kernel, words), ONE_PASS, NO_OPS, LITTLE, graphs)
    assert assert_bounded(advice, step).evidence["passes_per_step"] == 1
    little = drawn(GraphReplay, *replays(8, 0.5 * MS))
    kernels = drawn(Kernel, kernel(33))
    advice = device_unfilled(step, facts(), STEPS, kernels, ONE_PASS, NO_OPS, LITTLE, little)
    assert assert_bounded(advice, step).evidence["passes_per_step"] == 1


def test_an_unknown_device_is_said() -> None:
    with pytest.raises(NotKnown, match="multiprocessors"):
        device_unfilled(
            busy_pace(),
            facts(devices=()),
            STEPS,
            drawn(Kernel, kernel(33)),
            ONE_PASS,
            NO_OPS,
            NO_MEMORY,
            NO_GRAPHS,
        )
    bare = drawn(Kernel, kernel(33) | {"grid": None})
    with pytest.raises(NotKnown, match="grids"):
        device_unfilled(busy_pace(), facts(), STEPS, bare, ONE_PASS, NO_OPS, NO_MEMORY, NO_GRAPHS)
