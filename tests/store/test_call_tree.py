"""The tree of calls against a slow search for what is open around each event."""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from tests.analyses.drawn import HOW, WORLDS, drawings
from tests.drawing import Drawing
from tests.oracle import MARK, NOT_HOST, OP, RUNTIME, Event, Oracle, by_thread, parse, read
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.idle_gaps import idle_gaps
from stepscope.store import phases
from stepscope.store.trace import Trace


def opened(drawing: Drawing, tmp_path: Path) -> Trace:
    return stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path / "store")


def rows(trace: Trace, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.arrow(sql).to_pylist()
    return found


def names_of(trace: Trace) -> dict[int, tuple[str, ...]]:
    """The names along each path, the thread's place left out."""
    found: dict[int, tuple[str, ...]] = {}
    for row in rows(trace, "SELECT node, parent, name FROM call_tree ORDER BY node"):
        found[row["node"]] = (*found[row["parent"]], row["name"]) if row["parent"] is not None else ()
    return found


def call_sites(trace: Trace) -> dict[int, dict[str, Any]]:
    sql = """
        SELECT p.event, p.node, p.step, p.forward, p.phase, m.name AS module, u.name AS user_frame,
               l.name AS library_frame
        FROM call_sites p LEFT JOIN call_tree m ON m.node = p.module
        LEFT JOIN call_tree u ON u.node = p.user_frame LEFT JOIN call_tree l ON l.node = p.library_frame
    """
    return {row["event"]: row for row in rows(trace, sql)}


# ---------------------------------------------------------------- against the oracle


def host_events(oracle: Oracle) -> list[Event]:
    return [
        event
        for event in oracle.events
        if event.phase == "X"
        and event.category not in NOT_HOST
        and not (event.category == "user_annotation" and MARK.fullmatch(event.name))
    ]


def searched(oracle: Oracle) -> dict[int, tuple[str, ...]]:
    """For each host event the names of all events that are open around it on its thread, and its own."""
    found: dict[int, tuple[str, ...]] = {}
    for events in by_thread(host_events(oracle)).values():
        around: list[Event] = []
        for event in sorted(events, key=lambda event: event.order):
            around = [one for one in around if one.end > event.start]
            found[event.index] = (*(one.name for one in around), event.name)
            around.append(event)
    return found


def assert_same_paths(trace: Trace, oracle: Oracle) -> None:
    paths = searched(oracle)
    names = names_of(trace)
    expected: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for event in host_events(oracle):
        pid, tid = map(str, event.thread)
        figures = expected[pid, tid, paths[event.index]]
        figures[0] += 1
        figures[1] += event.dur
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows(trace, "SELECT node, pid, tid, calls, total_ns FROM call_tree WHERE calls > 0"):
        # Operators that autograd numbered and those it did not have paths of their own.
        figures = found[(row["pid"], row["tid"], names[row["node"]])]
        figures[0] += row["calls"]
        figures[1] += row["total_ns"]
    assert found == expected
    placed = {row["event"]: names[row["node"]] for row in rows(trace, "SELECT event, node FROM call_sites")}
    wanted = {event.index for event in host_events(oracle) if event.category in OP | RUNTIME}
    assert {event: placed[event] for event in wanted} == {event: paths[event] for event in wanted}


@pytest.mark.slow
@HOW
@given(drawings(worlds=WORLDS))
def test_random_calls(drawing: Drawing) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = opened(drawing, Path(folder))
        oracle = Oracle(*parse(drawing.json()))
        assert_same_paths(trace, oracle)
        own = rows(trace, "SELECT coalesce(sum(self_ns), 0)::BIGINT AS ns FROM call_tree")[0]["ns"]
        assert own == sum(event.host_self for event in host_events(oracle))
        assert_sums(trace)


def assert_sums(trace: Trace) -> None:
    """What must add up in every trace."""
    threads = rows(
        trace,
        """
        SELECT t.thread, sum(t.step_self_ns)::BIGINT AS in_steps,
               (SELECT sum(end_ns - start_ns)::BIGINT FROM steps) AS steps
        FROM call_tree t GROUP BY t.thread
        """,
    )
    assert all(row["in_steps"] == row["steps"] for row in threads)
    sums = rows(
        trace,
        """
        SELECT (SELECT coalesce(sum(starved_ns), 0)::BIGINT FROM call_tree) AS late,
               (SELECT coalesce(sum(device_ns), 0)::BIGINT FROM call_tree) AS device,
               (SELECT coalesce(sum(work_ns), 0)::BIGINT FROM launches) AS launched,
               (SELECT coalesce(sum(inclusive_ns), 0)::BIGINT FROM call_tree
                WHERE parent IS NULL) AS inclusive,
               (SELECT coalesce(sum(self_ns), 0)::BIGINT FROM call_tree) AS own,
               (SELECT count(*) FROM call_sites p JOIN (SELECT event FROM ops
                UNION ALL SELECT event FROM launches
                UNION ALL SELECT event FROM memory_events) USING (event)) AS call_sites,
               (SELECT count(*) FROM ops) + (SELECT count(*) FROM launches)
               + (SELECT count(*) FROM memory_events) AS events
        """,
    )[0]
    assert sums["late"] == sum(gap.idle_ns for gap in idle_gaps(trace) if gap.side == "host")
    assert sums["device"] == sums["launched"]
    assert sums["inclusive"] == sums["own"]
    assert sums["call_sites"] == sums["events"]


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_real_calls(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample(name)
    trace = open_shared(path)
    assert_sums(trace)
    if trace.meta.events < 12_000:  # the slow search is slow
        oracle = Oracle(*read(path))
        # Addresses are left out of names there.
        for event in oracle.events:
            event.name = re.sub("0x[0-9a-fA-F]+", "0x…", event.name)
        assert_same_paths(trace, oracle)


# ---------------------------------------------------------------- drawn by hand


def test_a_range_that_outlives_the_frame_it_began_in(tmp_path: Path) -> None:
    # The range 5..20 begins inside the frame 0..10. The operator at 12 is in the range alone.
    trace = opened(Drawing().frame("f", 0, 10).annotation("r", 5, 15).op("aten::mm", 12, 2), tmp_path)
    assert names_of(trace)[call_sites(trace)[2]["node"]] == ("r", "aten::mm")


def test_ranges_that_are_merely_numbered_are_one(tmp_path: Path) -> None:
    few, many = Drawing(), Drawing()
    for drawing, count in ((few, 64), (many, 65)):
        for number in range(count):
            drawing.annotation(f"batch {number}", number * 10, 5).op("aten::mm", number * 10 + 1, 2)
    assert len(names_of(opened(few, tmp_path))) == 1 + 2 * 64
    trace = stepscope.open(many.write(tmp_path / "b.json"), store=tmp_path / "store")
    assert sorted(names_of(trace).values()) == [(), ("batch #",), ("batch #", "aten::mm")]


def backward(drawing: Drawing, name: str, start: int, sequence: int, **more: Any) -> Drawing:
    """A node of autograd's engine, 10 µs long, with an operator, a launch and a kernel inside."""
    link = {"Sequence number": sequence, "Fwd thread id": 1}
    drawing.op(f"autograd::engine::evaluate_function: {name}", start, 10, args=link, **more)
    drawing.op(name, start + 1, 8, args=link, **more)
    return drawing.op("aten::mm", start + 2, 6, **more)


def forward(drawing: Drawing, name: str, start: int, dur: int, sequence: int, **more: Any) -> Drawing:
    return drawing.op(name, start, dur, args={"Sequence number": sequence, "Fwd thread id": 0}, **more)


def test_backward_belongs_to_its_forward(tmp_path: Path) -> None:
    # `train.py` calls two modules; aten::t made no node, so the number 7 is that of aten::linear, and of it
    # the outer operator is meant. Backward runs on a thread of its own; AccumulateGrad has no number and no
    # forward: it belongs to the frame that waits in backward.
    drawing = Drawing().frame("train.py(3): main", 0, 200).frame("torch/_tensor.py(9): backward", 100, 90)
    drawing.frame("nn.Module: Linear_0", 1, 30).frame("nn.Module: ReLU_0", 40, 20)
    forward(forward(forward(drawing, "aten::t", 5, 2, 7), "aten::linear", 10, 8, 7), "aten::addmm", 12, 4, 7)
    forward(drawing, "aten::relu", 45, 5, 8)
    backward(drawing, "ReluBackward0", 110, 8, thread=2)
    backward(drawing, "AddmmBackward0", 130, 7, thread=2)
    drawing.op("autograd::engine::evaluate_function: AccumulateGrad", 150, 10, thread=2)
    found = call_sites(opened(drawing, tmp_path))
    linear, addmm, relu = 5, 6, 7
    for event in (8, 9, 10):
        assert (found[event]["forward"], found[event]["module"]) == (relu, "nn.Module: ReLU_0")
    for event in (11, 12, 13):
        assert (found[event]["forward"], found[event]["module"]) == (linear, "nn.Module: Linear_0")
    assert (found[14]["forward"], found[14]["module"]) == (None, None)
    assert {found[event]["user_frame"] for event in range(4, 15)} == {"train.py(3): main"}
    assert {found[event]["phase"] for event in range(8, 15)} == {"backward"}
    assert {found[event]["phase"] for event in (4, linear, addmm, relu)} == {"forward"}


def test_a_graph_of_gradients_is_no_recomputation(tmp_path: Path) -> None:
    """With create_graph=True the operators of a node have numbers, for they are differentiated as well."""

    def phases(folder: str, *, checkpoint: bool) -> list[str]:
        drawing = Drawing()
        forward(drawing, "aten::tanh", 5, 8, 7)
        link = {"Sequence number": 7, "Fwd thread id": 1}
        drawing.op("autograd::engine::evaluate_function: TanhBackward0", 100, 90, args=link, thread=2)
        forward(drawing, "aten::tanh_backward", 112, 20, 3, thread=2)
        drawing.op("TanhBackwardBackward0", 300, 5, thread=2)
        if checkpoint:
            drawing.op("CheckpointFunction", 400, 5)
        (tmp_path / folder).mkdir()
        return [one["phase"] for one in call_sites(opened(drawing, tmp_path / folder)).values()]

    assert "recomputation" not in phases("plain", checkpoint=False)
    assert "recomputation" in phases("checkpointed", checkpoint=True)


def test_recomputation_is_forward_numbered_anew_inside_backward(tmp_path: Path) -> None:
    # Inside the node of backward, aten::linear has a number of its own: it is run again, and so is what it
    # calls. aten::mm beside it has none: backward. The module frame around the second forward counts.
    drawing = Drawing().frame("nn.Module: Linear_0", 0, 30)
    forward(drawing, "aten::linear", 5, 8, 7)
    link = {"Sequence number": 7, "Fwd thread id": 1}
    drawing.op("autograd::engine::evaluate_function: AddmmBackward0", 100, 90, args=link, thread=2)
    drawing.frame("nn.Module: Dropout_0", 110, 30, thread=2)
    forward(drawing, "aten::linear", 112, 20, 3, thread=2).op("aten::addmm", 114, 4, thread=2)
    drawing.op("aten::mm", 150, 5, thread=2)
    found = call_sites(opened(drawing, tmp_path))
    assert [found[event]["phase"] for event in (2, 4, 5, 6)] == [
        "backward",
        "recomputation",
        "recomputation",
        "backward",
    ]
    assert [found[event]["module"] for event in (4, 5, 6)] == [
        "nn.Module: Dropout_0",
        "nn.Module: Dropout_0",
        "nn.Module: Linear_0",
    ]


def test_phases_by_their_ranges(tmp_path: Path) -> None:
    drawing = Drawing().annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 10)
    drawing.op("aten::stack", 2, 3).op("aten::mm", 20, 5).annotation("Optimizer.step#SGD.step", 40, 10)
    drawing.op("aten::add_", 42, 3).launch("cudaLaunchKernel", 60, 2)
    drawing.frame("torch/nn/utils/clip_grad.py(20): clip_grad_norm_", 70, 10).op("aten::norm", 72, 3)
    found = call_sites(opened(drawing, tmp_path))
    assert {event: row["phase"] for event, row in found.items()} == {
        1: "dataloader",
        2: "forward",
        4: "optimizer",
        5: "other",
        7: "optimizer",
    }


def test_waiting_between_steps_belongs_to_none(tmp_path: Path) -> None:
    # The device is idle from 12 to 80, and the launch that ends this begins at 70: 12..20 lies in the first
    # step, 20..60 in none, 60..70 in the second. Before its first launch at 4 it waits, too, and at the end.
    drawing = Drawing().mark(1, 0, 20).mark(2, 60, 30).frame("train.py(3): main", 0, 95)
    drawing.launch("cudaLaunchKernel", 4, 1, corr=1).kernel("k", 6, 6, corr=1)
    drawing.launch("cudaLaunchKernel", 70, 1, corr=2).kernel("k", 80, 5, corr=2)
    found = rows(opened(drawing, tmp_path), "SELECT sum(starved_ns)::BIGINT AS late FROM call_tree")
    assert found == [{"late": 4_000 + 8_000 + 10_000 + 5_000}]


def test_where_the_device_waited(tmp_path: Path) -> None:
    # The device waits from 0 to 4 for its first launch, and from 65 to 100 for the end of the step, both on
    # thread 1. It is idle from 12 to 60. The launch that ends this begins at 50 on thread 2, so the host was
    # 38 µs late: 12..20 in the frame on thread 2, 20..30 in the operator there, 30..40 with nothing open, for
    # which the thread that called backward answers, and 40..50 in the node whose launch it is.
    drawing = Drawing().mark(1, 0, 100).frame("train.py(3): main", 0, 100)
    forward(drawing, "aten::mm", 2, 8, 7).launch("cudaLaunchKernel", 4, 1, corr=1).kernel("k", 6, 6, corr=1)
    drawing.frame("hook.py(5): run", 11, 9, thread=2).op("aten::item", 20, 10, thread=2)
    link = {"Sequence number": 7, "Fwd thread id": 1}
    drawing.op("autograd::engine::evaluate_function: MmBackward0", 40, 20, args=link, thread=2)
    drawing.launch("cudaLaunchKernel", 50, 5, corr=2, thread=2).kernel("k", 60, 5, corr=2)
    trace = opened(drawing, tmp_path)
    names = names_of(trace)
    late = {
        names[row["node"]]: row["starved_ns"]
        for row in rows(trace, "SELECT node, starved_ns FROM call_tree WHERE starved_ns > 0")
    }
    assert late == {
        ("hook.py(5): run",): 8_000,
        ("aten::item",): 10_000,
        ("train.py(3): main",): 10_000 + 2_000 + 35_000,
        ("train.py(3): main", "aten::mm"): 2_000,
        ("autograd::engine::evaluate_function: MmBackward0",): 10_000,
    }


def test_the_step_of_a_call(tmp_path: Path) -> None:
    drawing = Drawing().mark(3, 10, 10).mark(4, 20, 10)
    for start in (9, 10, 19, 20, 29, 30):
        drawing.op("aten::mm", start, 1)
    found = call_sites(opened(drawing, tmp_path))
    assert [found[event]["step"] for event in range(2, 8)] == [None, 3, 3, 4, 4, None]


USERS = {
    "train.py(3): main": True,
    "project/model.py(30): forward": True,
    "/home/me/project/model.py(30): forward": True,
    "profile.py(1): <module>": True,
    "torch_ext/layers.py(2): forward": True,
    "/tmp/ipykernel_12/345.py(1): <module>": True,
    "<ipython-input-5-abc>(1): <module>": True,
    "torch/nn/modules/module.py(1): _call_impl": False,
    "transformers/models/bert.py(1): forward": False,
    "/usr/lib/python3.11/site-packages/mylib/a.py(1): f": False,
    "/usr/local/lib/python3.11/threading.py(1): run": False,
    "typing.py(1): inner": False,
    "<frozen os>(680): __getitem__": False,
    "<built-in method item of Tensor object at 0x1>": False,
    "nn.Module: Linear_0": False,
    "/tmp/torchinductor_me/ab/cd.py(1): call": False,
    "/mnt/cache/2m/c2mkao3otvkxy2dtseqm6twqx6rd5yoae5cdt3i4gvljlv6hzzrx.py(9): call": False,
    "/mnt/cache/2m/crop.py(9): call": True,
}


@pytest.mark.parametrize("name", USERS)
def test_whose_frame_it_is(name: str) -> None:
    assert phases.is_user_frame(pa.array([name])).to_pylist() == [USERS[name]]


def test_a_servers_frames_count_where_there_are_no_others(tmp_path: Path) -> None:
    drawing = (
        Drawing().frame("vllm/engine.py(3): run", 0, 50).frame("torch/nn/functional.py(1): linear", 1, 20)
    )
    drawing.op("aten::mm", 2, 5)
    assert call_sites(opened(drawing, tmp_path))[2]["user_frame"] == "vllm/engine.py(3): run"
    drawing.frame("serve.py(1): main", -10, 90)
    trace = stepscope.open(drawing.write(tmp_path / "b.json"), store=tmp_path / "store")
    assert call_sites(trace)[2]["user_frame"] == "serve.py(1): main"


def test_the_innermost_function_of_a_library_is_kept_beside_the_users(tmp_path: Path) -> None:
    drawing = Drawing().frame("train.py(3): main", 0, 90).op("aten::add", 1, 2)
    drawing.frame("transformers/trainer.py(9): train", 5, 40)
    drawing.frame("transformers/models/gpt2/modeling_gpt2.py(7): forward", 6, 30)
    drawing.frame("torch/nn/functional.py(1): softmax", 7, 20)
    drawing.op("aten::softmax", 8, 5, args={"Sequence number": 4})
    drawing.frame("my_loss.py(2): loss_of", 37, 5).op("aten::sum", 38, 2)
    drawing.frame("autograd worker", 50, 1).frame("torch/autograd/graph.py(2): _engine_run_backward", 60, 20)
    backward = {"Sequence number": 4, "Fwd thread id": 1}
    drawing.op("SoftmaxBackward0", 62, 5, thread=2, args=backward)
    found = call_sites(opened(drawing, tmp_path))
    library = "transformers/models/gpt2/modeling_gpt2.py(7): forward"
    places = {event: (row["user_frame"], row["library_frame"]) for event, row in found.items()}
    assert places[1] == ("train.py(3): main", None)
    assert places[5] == ("train.py(3): main", library)
    assert places[7] == ("my_loss.py(2): loss_of", None)
    assert places[10] == ("train.py(3): main", library)  # backward is where its forward was
