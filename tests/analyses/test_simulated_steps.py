"""Steps played again: unchanged they are as long as they were, and changes drawn by hand come out exactly."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.analyses.drawn import HOW, WORLDS, drawings
from tests.analyses.test_critical_path import LAUNCH, opened
from tests.drawing import Drawing
from tests.faults import REPORTED
from tests.samples import FEW, SAMPLES, open_shared, tiered
from tests.trying import tries

from stepscope.analyses.simulated_steps import simulated_steps
from stepscope.simulation.changes import UNCHANGED, Change
from stepscope.simulation.simulator import Simulator
from stepscope.store.trace import Trace

DATA = Path(__file__).parent.parent / "data"
KEPT_HERE = sorted([*DATA.glob("recordings/*.trace.json.gz"), *DATA.glob("faults/*.trace.json.gz")])
NEAR = 0.03


def called(path: Path) -> str:
    return path.name.removesuffix(".pt.trace.json.gz")


UNEXPLAINED = {
    "device_unfilled.mended.light": 0.03,
    "healthy_graphed_mlp.healthy.light": 0.12,
    "launch_bound_training.mended.light": 0.17,
    "missed_graphs.mended.light": 0.09,
    "two_streams": 0.08,
    "unseen_healthy_rollout.healthy.light": 0.07,
    "unseen_pinn.mended.light": 0.07,
}
"""Programs with longer delays that nothing explains: graphs, of whose launches too few are in the profile to
know how long they usually take; and two streams."""

QUICK = [
    path
    for path in KEPT_HERE
    if path in REPORTED or path.parent.name == "recordings" or called(path) in UNEXPLAINED
]


def assert_the_replay_holds(trace: Trace, unexplained: float = NEAR) -> None:
    """Every step is as long as it was; and all steps nearly so without delays that nothing explains."""
    rows = list(simulated_steps(trace))
    assert rows
    assert all(abs(row.residual_share) <= NEAR for row in rows)
    assert sum(row.unexplained_ns for row in rows) <= unexplained * sum(row.measured_ns for row in rows)


@pytest.mark.parametrize("path", tiered(KEPT_HERE, QUICK), ids=called)
def test_an_unchanged_replay_of_a_recording(path: Path) -> None:
    assert_the_replay_holds(open_shared(path), UNEXPLAINED.get(called(path), NEAR))


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_an_unchanged_replay_of_a_real_profile(name: str, sample: Callable[[str], Path]) -> None:
    # The profile of vLLM begins while the device is busy with an iteration that is not in it.
    unexplained = 0.37 if "vllm" in name else 0.05 if "cuda_graph" in name else NEAR
    assert_the_replay_holds(open_shared(sample(name)), unexplained)


@pytest.mark.slow
@settings(HOW, max_examples=tries(2, 80))
@given(drawings(marks=True, worlds=WORLDS))
def test_a_random_profile_can_be_played(drawing: Drawing) -> None:
    every = Change(no_sync=("*", ""), graph=True, no_loader=True, overlap_copies=True, kernels=(("*", 0.5),))
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(opened(drawing, Path(folder)))
        for played in (simulator.run(UNCHANGED), simulator.run(every), simulator.run(Change(spared=2.0))):
            assert len(played.dur_ns) == simulator.steps.num_rows
            assert all(length >= 0 for length in played.dur_ns)


def test_patterns_that_are_typed_are_not_kept_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.simulation.simulator.MOST_ANSWERS", 3)
    drawing = Drawing().mark(1, 0, 100).launch(LAUNCH, 0, 2, corr=1).kernel("kernel", 10, 40, corr=1)
    simulator = Simulator(opened(drawing, tmp_path))
    typed = ["k*", "ke*", "ker*", "kern*", "x*"]
    lengths = [simulator.lengths_ns(Change(kernels=((pattern, 3.0),))) for pattern in typed]
    assert lengths == [[130_000]] * 4 + [[100_000]]
    assert len(simulator._answers) == 3
    # As long with and without the second run, which tells what nothing explains.
    assert simulator.run(Change(kernels=(("k*", 3.0),))).dur_ns == lengths[0]


def test_changes_together_are_as_long_whether_or_not_they_were_asked_for_alone(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 200).mark(1, 300, 200)
    for number, name in enumerate(("gemm", "copy", "norm", "gemm"), 1):
        drawing.launch(LAUNCH, number * 20, 2, corr=number).kernel(name, number * 30, 25, corr=number)
        drawing.op(f"aten::{name}", number * 20 - 1, 5)
    patterns = ("g*", "co*", "nor*", "*m*")
    together = Change(
        kernels=tuple((one, 3.0) for one in patterns), ranges=tuple((f"aten::{one}", 2.0) for one in patterns)
    )
    trace = opened(drawing, tmp_path)
    alone = Simulator(trace)
    for place in range(len(patterns)):
        alone.lengths_ns(
            Change(kernels=together.kernels[: place + 1], ranges=together.ranges[place : place + 2])
        )
    asked = list(alone._answers)
    assert alone.lengths_ns(together) == Simulator(trace).lengths_ns(together)
    assert len(asked) < len(alone._answers)


def test_changes_simulated_at_once_are_as_long_as_one_by_one(tmp_path: Path) -> None:
    drawing = Drawing()
    for number in range(1, 4):
        start = number * 300
        drawing.mark(number, start, 250).op("aten::mm", start + 5, 90)
        drawing.launch(LAUNCH, start + 20, 6, corr=number).kernel("gemm", start + 40, 70, corr=number)
    changes = [
        Change(ranges=(("aten::*", times),), spared=spared) for times in (0.5, 2.0) for spared in (0.3, 1.0)
    ]
    trace = opened(drawing, tmp_path)
    together = Simulator(trace)
    together.simulate(UNCHANGED, *changes, changes[0])
    found = [together.lengths_ns(change) for change in changes]
    assert found == [Simulator(trace).lengths_ns(change) for change in changes]
    assert len({tuple(lengths) for lengths in found}) == len(changes)


# ---------------------------------------------------------------- drawn by hand


def played(drawing: Drawing, folder: Path, change: Change = UNCHANGED) -> tuple[float, float]:
    """The length of the first step without and with a change, in µs."""
    simulator = Simulator(opened(drawing, folder))
    before, after = (simulator.run(one).dur_ns[0] / 1000 for one in (UNCHANGED, change))
    return before, after


def test_a_call_that_no_longer_waits(tmp_path: Path) -> None:
    # It takes the 5 that it took after the kernel, so all that follows is 45 earlier; the second kernel
    # begins when the first is done, at 50.
    drawing = Drawing().mark(1, 0, 100).launch(LAUNCH, 0, 2, corr=1).kernel("k", 10, 40, corr=1)
    drawing.launch("cudaStreamSynchronize", 5, 50, corr=2)
    drawing.launch(LAUNCH, 60, 2, corr=3).kernel("later", 70, 10, corr=3)
    assert played(drawing, tmp_path, Change(no_sync=("*", ""))) == (100, 60)


def test_a_call_that_found_the_device_done_waits_when_the_host_is_faster(tmp_path: Path) -> None:
    # The host comes to the call at 30 instead of 60, and the kernel is done at 50 as before.
    drawing = Drawing().mark(1, 0, 100).launch(LAUNCH, 0, 2, corr=1).kernel("k", 1, 49, corr=1)
    drawing.launch("cudaStreamSynchronize", 60, 2, corr=2)
    assert played(drawing, tmp_path, Change(host_times=0.5)) == (100, 69)


def test_a_kernel_that_takes_half(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 20)
    drawing.launch(LAUNCH, 2, 2, corr=1).launch(LAUNCH, 6, 2, corr=2)
    drawing.kernel("first", 10, 30, corr=1).kernel("second", 42, 58, corr=2)
    assert played(drawing, tmp_path, Change(kernels=(("sec*", 0.5),))) == (100, 71)


def test_a_copy_that_runs_beside(tmp_path: Path) -> None:
    # The kernel does not wait for the copy: it begins with its launch, at 5, and the copy is the last to end.
    drawing = Drawing().mark(1, 0, 20)
    drawing.launch("cudaMemcpyAsync", 0, 2, corr=1).launch(LAUNCH, 5, 2, corr=2)
    drawing.memcpy("Memcpy HtoD (Pinned -> Device)", 10, 40, corr=1).kernel("k", 52, 38, corr=2)
    assert played(drawing, tmp_path, Change(overlap_copies=True)) == (90, 50)


def test_loading_that_is_gone(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).annotation("enumerate(DataLoader)#_Next", 10, 50)
    drawing.launch(LAUNCH, 70, 2, corr=1).kernel("k", 80, 10, corr=1)
    assert played(drawing, tmp_path, Change(no_loader=True)) == (100, 50)


def test_a_graph_leaves_the_first_launch_and_the_device(tmp_path: Path) -> None:
    # The kernels are 10 each, the second has no gap to the first; loading before the first launch stays.
    drawing = Drawing().mark(1, 0, 100)
    drawing.launch(LAUNCH, 20, 2, corr=1).kernel("a", 25, 10, corr=1)
    drawing.launch(LAUNCH, 60, 2, corr=2).kernel("b", 65, 10, corr=2)
    assert played(drawing, tmp_path, Change(graph=True)) == (100, 45)


def test_a_thread_that_another_one_works_for(tmp_path: Path) -> None:
    # The engine works from 20 to 50; in half of that it is done at 35, and the rest is 15 earlier.
    drawing = Drawing().mark(1, 0, 80).op("forward", 0, 10).op("after", 60, 10)
    drawing.op("backward", 20, 30, thread=2, args={"Fwd thread id": 1, "Sequence number": 1})
    drawing.launch(LAUNCH, 30, 2, thread=2, corr=1).kernel("k", 32, 4, corr=1)
    assert played(drawing, tmp_path, Change(ranges=(("backward", 0.5),))) == (80, 65)


def test_a_thread_that_is_given_work(tmp_path: Path) -> None:
    # The leading thread takes half of its 20 before the engine's and half of its 30 after it.
    drawing = Drawing().mark(1, 0, 80).op("forward", 0, 10).op("after", 60, 10)
    drawing.op("backward", 20, 30, thread=2, args={"Fwd thread id": 1, "Sequence number": 1})
    change = Change(host_times=0.5, ranges=(("backward", 2.0),))
    assert played(drawing, tmp_path, change) == (80, 10 + 30 + 15)


def test_a_thread_that_only_runs_beside_holds_nobody_up(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 80).op("forward", 0, 10).op("after", 60, 10)
    drawing.op("pin_memory", 20, 30, thread=9)
    assert played(drawing, tmp_path, Change(ranges=(("pin_memory", 0.5),))) == (80, 80)


def test_a_collective_of_the_host_is_waited_for(tmp_path: Path) -> None:
    # It begins at 60 and takes 440; in half of that it is done at 280, and the rest is 220 earlier.
    drawing = Drawing().mark(1, 0, 600).op("c10d::allreduce_", 0, 40)
    drawing.annotation("gloo:all_reduce", 60, 440, thread=3).op("optimizer", 520, 80)
    assert played(drawing, tmp_path, Change(ranges=(("gloo:*", 0.5),))) == (600, 380)


def test_a_delay_that_nothing_explains_is_kept_in_part(tmp_path: Path) -> None:
    # The second kernel began 78 after its launch returned; 20 of that are kept.
    drawing = Drawing().mark(1, 0, 30)
    drawing.launch(LAUNCH, 0, 2, corr=1).kernel("a", 5, 5, corr=1)
    drawing.launch(LAUNCH, 20, 2, corr=2).kernel("b", 100, 10, corr=2)
    (row,) = simulated_steps(opened(drawing, tmp_path))
    assert (row.measured_ns, row.simulated_ns, row.unexplained_ns) == (110_000, 52_000, 20_000)
    assert row.changed_low_ns is None


def test_work_without_a_launch_keeps_its_distance(tmp_path: Path) -> None:
    drawing = Drawing().kernel("a", 0, 10).kernel("b", 100, 10)
    assert played(drawing, tmp_path, Change(kernels=(("a", 0.0),))) == (110, 100)


def test_an_empty_profile_has_no_steps(tmp_path: Path) -> None:
    assert list(simulated_steps(opened(Drawing(), tmp_path))) == []
