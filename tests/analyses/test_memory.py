"""Memory: drawn by hand, replayed one event after another, and against torch's own timeline."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.memory import DeviceMemory, memory
from stepscope.analyses.memory_curves import MemoryPoint, memory_curves
from stepscope.analyses.memory_peaks import PeakMemory, memory_peaks
from stepscope.analyses.memory_steps import MemoryStep, memory_steps
from stepscope.errors import StepscopeError
from stepscope.store.trace import Trace

RECORDED = [
    "h200_mem_timeline.pt.trace.json.gz",
    "h200_resnet50.pt.trace.json.gz",
    "h200_rl_churn.pt.trace.json.gz",
    "h200_slow_item.pt.trace.json.gz",
    "h200_tutorial_baseline.pt.trace.json.gz",
    "tl_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz",
    "tl_h100_gaunernst_bert-small-uncased.json.gz",
]
RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
BACKWARD_OP = "autograd::engine::evaluate_function: AddmmBackward0"
ANALYSES = (memory, memory_steps, memory_curves, memory_peaks)


class Allocator:
    """Draws what one device's allocator reports."""

    def __init__(self, drawing: Drawing, device: int, before: int) -> None:
        self.drawing, self.device, self.total = drawing, device, before

    def __call__(self, start: float, address: int, n_bytes: int, thread: int = 1) -> None:
        self.total += n_bytes
        args = {"Total Reserved": 4096 if self.device >= 0 else 0, "Total Allocated": self.total}
        args |= {"Bytes": n_bytes, "Device Id": self.device, "Device Type": int(self.device >= 0)}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100}
        self.drawing.add({**event, "tid": thread, "ts": start, "args": {**args, "Addr": address}})


def sequence(number: int, forward_thread: int) -> dict[str, int]:
    """How autograd ties an operator of backward to one of forward."""
    return {"Sequence number": number, "Fwd thread id": forward_thread}


def training() -> Drawing:
    """Two steps of a layer on two devices. By hand, device 0, in order (bytes allocated after each):

    1,000 before. Forward: +400 at address 1 (1,400), +50 and -50 at 2, +8 at 3 (1,408). Backward: +400 at 4
    (1,808), +600 at 5 (2,408: the peak), -400 at 1, -600 at 5 (1,408). Optimizer: +64 at 6 (1,472), then +32
    and -32. Step 2, forward: +400 at address 1 again (1,872), -8 at 3; zero_grad: -400 at 4; backward: -400
    at 1 (1,064). Device 1 holds 300 bytes from before that zero_grad frees, and 10 from forward to optimizer.
    """
    drawing = Drawing().mark(1, 0, 100).mark(2, 100, 100)
    first, second = Allocator(drawing, 0, 1000), Allocator(drawing, 1, 300)
    drawing.frame("nn.Module: Linear_0", 2, 18)
    drawing.op("aten::linear", 3, 7, args=sequence(7, 0)).op("aten::relu", 11, 7)
    first(5, 1, 400)
    second(6, 1, 10)
    first(13, 2, 50)
    first(14, 2, -50)
    first(15, 3, 8)
    drawing.annotation("Optimizer.zero_grad#SGD.zero_grad", 22, 2)
    second(23, 9, -300)
    drawing.op(BACKWARD_OP, 30, 20, thread=2, args=sequence(7, 1))
    first(32, 4, 400, thread=2)
    first(34, 5, 600, thread=2)
    first(36, 1, -400, thread=2)
    first(40, 5, -600, thread=2)
    drawing.annotation("Optimizer.step#SGD.step", 55, 15).op("aten::_foreach_add_", 56, 9)
    first(57, 6, 64)
    first(58, 7, 32)
    first(60, 7, -32)
    second(61, 1, -10)
    drawing.op("aten::linear", 103, 7, args=sequence(8, 0))
    first(105, 1, 400)
    first(106, 3, -8)
    drawing.annotation("Optimizer.zero_grad#SGD.zero_grad", 120, 4)
    first(122, 4, -400)
    drawing.op(BACKWARD_OP, 130, 20, thread=2, args=sequence(8, 1))
    first(135, 1, -400, thread=2)
    return drawing


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(str(drawing.write(folder / "drawn.json")), store=folder / "store")


@pytest.fixture
def drawn(tmp_path: Path) -> Trace:
    return opened(training(), tmp_path)


def test_the_memory_of_each_device(drawn: Trace) -> None:
    table = memory(drawn)
    assert list(table) == [
        DeviceMemory("0", 8, 7, 1000, 1064, 2408, 34_000, 1, 4096, 4096 - 2408, 4096 - 1064, 2, -408, -408.0),
        DeviceMemory("1", 1, 2, 300, 0, 310, 6_000, 1, 4096, 4096 - 310, 4096, 2, 0, 0.0),
    ]
    assert not table.notes


def test_the_memory_of_each_step(drawn: Trace) -> None:
    assert list(memory_steps(drawn)) == [
        MemoryStep("0", 1, 1000, 1472, 472, 2408, 7, 1554, 4, 1082, 4096, 4096 - 1472),
        MemoryStep("0", 2, 1472, 1064, -408, 1872, 1, 400, 3, 808, 4096, 4096 - 1064),
        MemoryStep("1", 1, 300, 0, -300, 310, 1, 10, 2, 310, 4096, 4096),
        MemoryStep("1", 2, 0, 0, 0, 0, 0, 0, 0, 0, 4096, 4096),
    ]


def test_what_is_live_at_the_peak(drawn: Trace) -> None:
    rows = [row for row in memory_peaks(drawn) if row.device == "0"]
    assert rows == [
        PeakMemory("0", "unknown", "before", "kept", None, None, None, 1000, 1000 / 2408),
        PeakMemory("0", "temporaries", "backward", "backward", "Linear_0", BACKWARD_OP, 1, 600, 600 / 2408),
        PeakMemory("0", "activations", "forward", "backward", "Linear_0", "aten::linear", 1, 400, 400 / 2408),
        PeakMemory("0", "gradients", "backward", "optimizer", "Linear_0", BACKWARD_OP, 1, 400, 400 / 2408),
        PeakMemory("0", "unknown", "forward", "later forward", "Linear_0", "aten::relu", 1, 8, 8 / 2408),
    ]


def test_what_zero_grad_frees_is_gradients_though_nobody_saw_it_allocated(drawn: Trace) -> None:
    assert [row for row in memory_peaks(drawn) if row.device == "1"] == [
        PeakMemory("1", "gradients", "before", "optimizer", None, None, 1, 300, 300 / 310),
        PeakMemory("1", "unknown", "forward", "optimizer", "Linear_0", "aten::linear", 1, 10, 10 / 310),
    ]


def test_the_peak_of_one_step(drawn: Trace) -> None:
    # At 105 µs: what the optimizer made and nobody frees is its state.
    rows = [row for row in memory_peaks(drawn, step=2) if row.device == "0"]
    assert Counter({row.category: row.bytes for row in rows if row.category != "unknown"}) == {
        "activations": 400,
        "gradients": 400,
        "optimizer state": 64,
    }
    assert sum(row.bytes for row in rows) == 1872
    assert memory_peaks(drawn, step=9).notes[0] == "No event of memory in step 9."
    assert not len(memory_peaks(drawn, step=9))


def test_a_curve_has_its_extremes_and_its_ends(drawn: Trace) -> None:
    # 15 changes from 5 to 135 µs; with 6 points two stretches, the second from 70 µs on.
    points = [row for row in memory_curves(drawn, points=6) if row.device == "0"]
    assert points == [
        MemoryPoint("0", 5_000, 1400, 4096),
        MemoryPoint("0", 34_000, 2408, 4096),
        MemoryPoint("0", 105_000, 1872, 4096),
        MemoryPoint("0", 135_000, 1064, 4096),
    ]
    assert [row.allocated_bytes for row in memory_curves(drawn) if row.device == "1"] == [310, 10, 0]
    with pytest.raises(StepscopeError, match="too few"):
        memory_curves(drawn, points=3)


def test_growth_is_the_slope_of_the_ends(tmp_path: Path) -> None:
    # 100, 300, 200 at the ends of three steps: the line through them rises by 50, and by 100 in all.
    drawing = Drawing()
    allocate = Allocator(drawing, -1, 0)
    for step, n_bytes in enumerate((100, 200, -100)):
        drawing.mark(step, step * 10, 10)
        allocate(step * 10 + 5, 1 + step % 2, n_bytes)
    (row,) = memory(opened(drawing, tmp_path))
    assert (row.growth_bytes, row.growth_per_step_bytes, row.steps) == (100, 50.0, 3)
    assert (row.device, row.reserved_peak_bytes, row.unused_at_peak_bytes) == ("cpu", None, None)


def test_events_of_one_instant_count_in_the_order_of_the_file(tmp_path: Path) -> None:
    # Clocks of whole microseconds: 50, 70 and 20 bytes at once, and the step ends with 20.
    drawing = Drawing().mark(0, 0, 6).mark(1, 6, 10)
    allocate = Allocator(drawing, 0, 0)
    allocate(5, 1, 50)
    allocate(5, 2, 20)
    allocate(5, 1, -50)
    trace = opened(drawing, tmp_path)
    assert [(row.end_bytes, row.peak_bytes) for row in memory_steps(trace)] == [(20, 70), (20, 20)]
    assert [(row.bytes, row.freed_in) for row in memory_peaks(trace)] == [(50, "other"), (20, "kept")]


def test_an_address_given_out_twice_hides_its_free(tmp_path: Path) -> None:
    drawing = Drawing().mark(0, 0, 20).op("aten::empty", 1, 15)
    allocate = Allocator(drawing, 0, 0)
    allocate(5, 1, 50)
    allocate(6, 1, 10)
    rows = list(memory_peaks(opened(drawing, tmp_path)))
    # The first block cannot be live any more, though its bytes are still counted: they are not accounted for.
    assert [(row.category, row.phase, row.freed_in, row.blocks, row.bytes) for row in rows] == [
        ("unknown", "before", "kept", None, 50),
        ("unknown", "forward", "kept", 1, 10),
    ]


def test_gradients_say_how_large_the_parameters_are(tmp_path: Path) -> None:
    # 3 floats and 1,000 halves: 12 and 2,000 bytes, in blocks of 512 bytes 512 and 2,048: 2.5 KiB.
    drawing = Drawing().mark(0, 0, 20)
    shapes = (([3], "float"), ([10, 100], "c10::Half"))
    for at, (size, kind) in enumerate(shapes):
        drawing.op(
            "torch::autograd::AccumulateGrad", at, 1, args={"Input Dims": [size], "Input type": [kind]}
        )
    Allocator(drawing, 0, 0)(5, 1, 50)
    assert "gives 2 gradients, 2.50 KiB in all" in memory_peaks(opened(drawing, tmp_path)).notes[-1]


def test_accumulated_gradients_count_once(tmp_path: Path) -> None:
    # Two passes back from numbers 9 and 19; each gives one gradient of 4 bytes. Then another step.
    drawing = Drawing().mark(0, 0, 20).mark(1, 20, 10)
    for start, number in ((1, 9), (3, 8), (6, 19), (8, 18), (21, 29)):
        drawing.op("MulBackward0", start, 1, args=sequence(number, 1))
    for start in (4, 9, 22):
        args = {"Input Dims": [[1]], "Input type": ["float"]}
        drawing.op("torch::autograd::AccumulateGrad", start, 1, args=args)
    Allocator(drawing, -1, 0)(5, 1, 50)
    assert "gives 1 gradients, 4 B in all" in memory_peaks(opened(drawing, tmp_path)).notes[-1]


def test_memory_that_was_not_to_be_had(tmp_path: Path) -> None:
    drawing = training()
    args = {
        "Device Type": 1,
        "Device Id": 0,
        "Bytes": 1 << 40,
        "Total Allocated": 1472,
        "Total Reserved": 4096,
    }
    event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[OutOfMemory]", "pid": 100, "tid": 1}
    drawing.add({**event, "ts": 90, "args": args})
    table = memory(opened(drawing, tmp_path))
    assert table.notes == (f"Requests for memory that failed: 1, the largest for {1 << 40} bytes.",)
    assert [row.peak_bytes for row in table] == [2408, 310]


# ---------------------------------------------------------------- real profiles


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_profile_has_an_answer(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    for analysis in ANALYSES:
        table = analysis(trace)
        if name in RECORDED:
            assert len(table)
        else:
            assert table.notes == ("No events of memory: record with profile_memory=True.",)
            assert not len(table)


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file, parse_float=Decimal)["traceEvents"]
    return events


def by_device(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    devices = defaultdict(list)
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        args = event["args"]
        devices["cpu" if args["Device Type"] == 0 else str(args["Device Id"])].append(event)
    return devices


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_a_replay_event_by_event_agrees(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample(name)
    trace = open_shared(path)
    rows = {row.device: row for row in memory(trace)}
    changes = by_device(events_of(path))
    assert rows.keys() == changes.keys()
    curves = memory_curves(trace, points=50)
    for device, events in changes.items():
        totals = [event["args"]["Total Allocated"] for event in events]
        highest = totals.index(max(totals))
        live: dict[int, int] = {}
        for event in events[: highest + 1]:
            if event["args"]["Bytes"] > 0:
                live[event["args"]["Addr"]] = event["args"]["Bytes"]
            else:
                live.pop(event["args"]["Addr"], None)
        assert rows[device].peak_bytes == max(totals)
        assert rows[device].last_bytes == totals[-1]
        peak = [row for row in memory_peaks(trace) if row.device == device]
        assert sum(row.bytes for row in peak) == max(totals)
        made = [row for row in peak if row.phase != "before"]
        assert sum(row.bytes for row in made) == sum(live.values())
        assert sum(row.blocks or 0 for row in made) == len(live)
        curve = [row.allocated_bytes for row in curves if row.device == device]
        assert len(curve) <= 50
        assert (max(curve), min(curve), curve[-1]) == (max(totals), min(totals), totals[-1])


def test_operators_of_live_blocks_by_another_way(sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample("h200_mem_timeline.pt.trace.json.gz")
    events = events_of(path)
    ops = [e for e in events if e.get("cat") == "cpu_op"]
    changes = by_device(events)["0"]
    totals = [event["args"]["Total Allocated"] for event in changes]
    live: dict[int, dict[str, Any]] = {}
    for event in changes[: totals.index(max(totals)) + 1]:
        if event["args"]["Bytes"] > 0:
            live[event["args"]["Addr"]] = event
        else:
            live.pop(event["args"]["Addr"], None)
    expected: Counter[str | None] = Counter()
    for event in live.values():
        around = [
            op for op in ops if op["tid"] == event["tid"] and op["ts"] <= event["ts"] < op["ts"] + op["dur"]
        ]
        innermost = max(around, key=lambda op: op["ts"])["name"] if around else None
        expected[innermost] += event["args"]["Bytes"]
    found: Counter[str | None] = Counter()
    for row in memory_peaks(open_shared(path)):
        if row.device == "0" and row.phase != "before":
            found[row.op] += row.bytes
    assert found == expected


def test_torch_s_own_timeline_agrees(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """torch sees tensors, not only blocks: it knows parameters, and so it can tell what we cannot."""
    with gzip.open(sample("h200_mem_timeline.raw.json.gz"), "rt") as file:
        timeline: list[list[int]] = json.load(file)
    # Categories by number; actions: 1 was there, 2 create, 3 change, 4 destroy.
    parameter, activation, gradient = 0, 4, 5
    trace = open_shared(sample("h200_mem_timeline.pt.trace.json.gz"))
    peak_ns = next(row.peak_ns for row in memory(trace) if row.device == "0")
    theirs: Counter[int] = Counter()
    for time, action, n_bytes, category in timeline:
        if time <= peak_ns and action in (1, 2, 4):
            theirs[category] += -abs(n_bytes) if action == 4 else abs(n_bytes)
    table = memory_peaks(trace)
    ours = Counter[str]()
    for row in table:
        if row.device == "0":
            ours[row.category] += row.bytes
    # The loss and the gradient that backward starts from, 512 bytes each, are activations to torch.
    assert ours["activations"] + 1024 == theirs[activation]
    assert ours["gradients"] - 512 == theirs[gradient]
    assert theirs[parameter] == 75_657_216  # 72.2 MiB
    assert table.notes[-1].startswith("A backward pass gives 72 gradients, 72.2 MiB in all")


def test_a_leak_is_the_growth_of_every_step(tmp_path: Path) -> None:
    """Four steps on a GPU that each keep 4 MiB; torch's own counters beside the profile."""
    facts = json.loads((RECORDINGS / "leak.key_averages.json").read_text(encoding="utf-8"))["facts"]
    trace = open_shared(RECORDINGS / "leak.pt.trace.json.gz")
    device = next(row for row in memory(trace) if row.device == "0")
    leaked = facts["leaked_bytes_per_step"]
    assert device.growth_per_step_bytes == leaked
    assert device.growth_bytes == 3 * leaked
    assert device.peak_bytes == facts["most_allocated_bytes"]
    assert device.last_bytes == facts["allocated_bytes"]
    steps = [row for row in memory_steps(trace) if row.device == "0"]
    assert [row.growth_bytes for row in steps] == [leaked] * 4
    # What is kept is named: the operator of the tensor that each of the three steps before the peak kept.
    kept = [row for row in memory_peaks(trace) if row.device == "0" and row.phase == "forward"]
    assert ("kept", "aten::empty", 3, 3 * leaked) in [
        (row.freed_in, row.op, row.blocks, row.bytes) for row in kept
    ]
