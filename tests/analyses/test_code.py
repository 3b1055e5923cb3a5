"""Where in the program time was spent: phases, lines, modules, ranges, frames, paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope import registry
from stepscope.store.trace import Trace
from stepscope.tables import Table

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
STACKS = ["h200_resnet50.pt.trace.json.gz", "h200_rl_churn.pt.trace.json.gz", "tl_b200_eager_trace.json.gz"]


def analysed(name: str, trace: Trace, **options: Any) -> Table[Any]:
    table: Table[Any] = registry.load("analyses", name)(trace, **options)
    return table


def opened(drawing: Drawing, tmp_path: Path) -> Trace:
    return stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path / "store")


def one(trace: Trace, sql: str) -> int:
    return int(trace.arrow(sql)[0][0].as_py())


def training_step() -> Drawing:
    """A step of 200 µs: data 0..10, forward 20..60 in two modules, backward 80..130, optimizer 150..180."""
    drawing = Drawing().mark(5, 0, 200).frame("train.py(3): main", 0, 200)
    drawing.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    drawing.frame("nn.Module: Net_0", 15, 50).frame("model.py(8): forward", 16, 48)
    drawing.frame("nn.Module: Linear_0", 18, 20).frame("nn.Module: ReLU_0", 40, 20)
    drawing.annotation("model", 14, 52)
    for corr, name, start, sequence in ((1, "aten::addmm", 20, 7), (2, "aten::relu", 50, 8)):
        drawing.op(name, start, 10, args={"Sequence number": sequence, "Fwd thread id": 0})
        drawing.launch("cudaLaunchKernel", start + 2, 4, corr=corr)
        drawing.kernel(name, start + 10, 5, corr=corr)
    drawing.annotation("backward", 70, 70)
    for corr, name, start, sequence in ((3, "ReluBackward0", 80, 8), (4, "AddmmBackward0", 110, 7)):
        link = {"Sequence number": sequence, "Fwd thread id": 1}
        drawing.op(f"autograd::engine::evaluate_function: {name}", start, 20, args=link, thread=2)
        drawing.launch("cudaLaunchKernel", start + 5, 5, corr=corr, thread=2)
        drawing.kernel(name, start + 15, 40, corr=corr)
    drawing.annotation("Optimizer.step#SGD.step", 150, 30).op("aten::add_", 155, 10)
    return drawing.launch("cudaLaunchKernel", 160, 2, corr=5).kernel("update", 170, 3, corr=5)


def test_phases_of_a_step(tmp_path: Path) -> None:
    # Host: data 10; forward the two operators, 20; backward the two nodes, 40; optimizer its range, 30; the
    # step is 200, so other is 100. With pauses: forward 20..60, backward 80..130.
    # Device: 5 + 5 forward, 40 + 40 backward, 3 optimizer.
    table = analysed("phases", opened(training_step(), tmp_path))
    found = {row.phase: (row.host_ns, row.stretch_ns, row.device_ns, row.launches) for row in table}
    assert found == {
        "dataloader": (10_000, 10_000, 0, 0),
        "forward": (20_000, 40_000, 10_000, 2),
        "backward": (40_000, 50_000, 80_000, 2),
        "recomputation": (0, 0, 0, 0),
        "optimizer": (30_000, 30_000, 3_000, 1),
        "other": (100_000, 70_000, 0, 0),
    }
    assert {row.step for row in table} == {5}


def test_lines_of_a_step(tmp_path: Path) -> None:
    # forward() of model.py is open 16..64 on the thread; the nodes of backward, 20 + 20, are its forward's.
    # main() has the rest of the 200 µs. The device falls idle at 35 and waits until the launch at 52: 17 µs
    # in model.py (aten::relu and its launch 50..52 among them). Then at 65 until 85: on thread 2 nothing is
    # open until 80, for which main answers but for nothing of model.py (it ended at 64), and 5 in the node.
    # The kernel of AddmmBackward0 waits for a launch at 115 made while the device runs. At 165: no launch is
    # late, for the one at 160 had been made. Before its first work the device waits until the launch at 22:
    # 16 in main, 6 in model.py. After its last work, which ends at 173, main takes until 200 to end the step.
    table = analysed("lines", opened(training_step(), tmp_path))
    found = {(row.file, row.line, row.function): row for row in table}
    inner, outer = found["model.py", 8, "forward"], found["train.py", 3, "main"]
    assert len(found) == 2
    assert (inner.host_ns, outer.host_ns) == (48_000 + 40_000, 152_000)
    assert (inner.device_forward_ns, inner.device_backward_ns) == (10_000, 80_000)
    assert (inner.device_ns, outer.device_ns) == (90_000, 3_000)
    assert (inner.idle_ns, outer.idle_ns) == (6_000 + 17_000 + 5_000, 16_000 + 15_000 + 27_000)
    assert (inner.launches, outer.launches) == (4, 1)


def test_modules_of_a_step(tmp_path: Path) -> None:
    # Net_0 is open 15..65, Linear_0 18..38 and ReLU_0 40..60 of it: 10 are its own.
    table = analysed("modules", opened(training_step(), tmp_path))
    found = {row.path: row for row in table}
    assert list(found) == ["Net_0", "Net_0.Linear_0", "Net_0.ReLU_0"]
    net, linear = found["Net_0"], found["Net_0.Linear_0"]
    assert (net.host_forward_self_ns, net.host_forward_total_ns) == (10_000, 50_000)
    assert (linear.host_forward_self_ns, linear.host_backward_self_ns) == (20_000, 20_000)
    assert (net.device_forward_self_ns, net.device_forward_total_ns) == (0, 10_000)
    assert (net.device_backward_total_ns, linear.device_backward_self_ns) == (80_000, 40_000)
    assert net.device_share == pytest.approx(90 / 93)
    assert (net.calls, net.depth, linear.depth, linear.name) == (1, 0, 1, "Linear_0")
    assert table.notes[0] == "Device work in the steps that belongs to no module: 3.00 µs."


def test_ranges_of_a_step(tmp_path: Path) -> None:
    # "model" is 14..66 and its two kernels run 30..65. "backward" is 70..140 on a thread that launches
    # nothing then: the work of autograd's thread counts, 95..165, which ends 25 after the range.
    table = analysed("annotations", opened(training_step(), tmp_path))
    found = {
        row.name: (row.host_ns, row.device_ns, row.device_span_ns, row.launches, row.lag_ns) for row in table
    }
    assert found == {
        "backward": (70_000, 80_000, 70_000, 2, 25_000),
        "model": (52_000, 10_000, 35_000, 2, 0),
        "Optimizer.step#SGD.step": (30_000, 3_000, 3_000, 1, 0),
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": (10_000, 0, 0, 0, None),
    }


def test_frames_that_call_themselves_count_once(tmp_path: Path) -> None:
    # walk() 0..50 calls itself 10..40, and an operator launches 7 µs of work in the inner one.
    drawing = Drawing().frame("tree.py(1): walk", 0, 50).frame("tree.py(1): walk", 10, 30)
    drawing.op("aten::mm", 20, 10).launch("cudaLaunchKernel", 22, 2, corr=1).kernel("k", 25, 7, corr=1)
    trace = opened(drawing, tmp_path)
    (row,) = analysed("python_frames", trace)
    assert (row.calls, row.total_ns, row.self_ns, row.device_ns) == (2, 50_000, 40_000, 7_000)
    paths = [
        (row.kind, row.depth, row.total_ns, row.self_ns, row.device_ns)
        for row in analysed("call_paths", trace)
    ]
    assert paths == [
        ("thread", 0, 50_000, 0, 7_000),
        ("frame", 1, 50_000, 20_000, 7_000),
        ("frame", 2, 30_000, 20_000, 7_000),
        ("op", 3, 10_000, 8_000, 7_000),
        ("call", 4, 2_000, 2_000, 7_000),
    ]
    assert len(analysed("call_paths", trace, least_ns=10_000)) == 4  # 10 + 7 µs, but 2 + 7 are less


def test_a_replayed_graph_has_the_phases_and_modules_of_its_eager_run() -> None:
    # Steps 2 and 3 ran the kernels one by one, 5 to 7 replayed them: 19 kernels of a step, of which the eager
    # ones say forward 7, backward 11, optimizer 1.
    trace = open_shared(RECORDINGS / "cuda_graph.pt.trace.json.gz")
    found = {(row.step, row.phase): row for row in analysed("phases", trace)}
    for step in (5, 6, 7):
        for phase in ("forward", "backward", "optimizer"):
            replayed, eager = found[step, phase], found[3, phase]
            assert replayed.device_ns == pytest.approx(eager.device_ns, rel=0.1)
            assert (replayed.host_ns, replayed.launches) == (0, 0)
        assert (found[step, "other"].device_ns, found[step, "other"].launches) == (0, 1)
    modules = {row.path: row for row in analysed("modules", trace)}
    inside = sum(row.device_forward_self_ns + row.device_backward_self_ns for row in modules.values())
    assert inside > 0.8 * sum(row.device_ns for row in found.values())
    assert modules["Mlp_0.Linear_1"].device_backward_self_ns > 0


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_phases_sum_to_the_steps(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    table = analysed("phases", trace)
    steps = trace.arrow(
        "SELECT step, sum(end_ns - start_ns)::BIGINT AS ns FROM steps GROUP BY step"
    ).to_pylist()
    for step in steps:
        rows = [row for row in table if row.step == step["step"]]
        assert sum(row.host_ns for row in rows) == step["ns"]
        assert sum(row.stretch_ns for row in rows) == step["ns"]
    launched = one(
        trace,
        """
        SELECT coalesce(sum(w.dur_ns), 0)::BIGINT FROM device_work w JOIN launches l ON l.event = w.launch
        JOIN steps s ON l.start_ns >= s.host_start_ns AND l.start_ns < s.host_end_ns
        """,
    )
    assert sum(row.device_ns for row in table) == launched


@pytest.mark.parametrize("name", STACKS)
def test_all_work_has_a_line_and_a_module(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    launched = sum(row.device_ns for row in analysed("phases", trace))
    assert sum(row.device_ns for row in analysed("lines", trace)) == launched
    assert sum(row.idle_ns for row in analysed("lines", trace)) == one(
        trace, "SELECT sum(starved_ns)::BIGINT FROM call_tree"
    )
    modules = list(analysed("modules", trace))
    inside = sum(row.device_forward_self_ns + row.device_backward_self_ns for row in modules)
    roots = sum(
        row.device_forward_total_ns + row.device_backward_total_ns for row in modules if row.depth == 0
    )
    assert 0 < inside == roots <= launched


def test_a_resnet_does_most_of_its_work_in_its_modules(sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample("h200_resnet50.pt.trace.json.gz"))
    rows = {row.path: row for row in analysed("modules", trace)}
    convolutions = [row for row in rows.values() if row.name.startswith("Conv2d")]
    assert len(convolutions) == 53  # as many as a ResNet-50 has
    assert all(row.calls == 3 and row.device_backward_self_ns > 0 for row in convolutions)
    assert rows["ResNet_0"].device_share > 0.9
