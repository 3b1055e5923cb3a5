"""Idle time of devices: by hand, against a reading of every nanosecond, and on real profiles."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing, Literal
from tests.oracle import OP, RUNTIME, Event, Oracle, device_of, is_communication, is_host
from tests.samples import FEW, SAMPLES, open_shared, tiered

from stepscope.analyses._idle import Window
from stepscope.analyses.allocations import allocations
from stepscope.analyses.devices import devices
from stepscope.analyses.host_syncs import host_syncs
from stepscope.analyses.idle_gaps import IdleGap, idle_gaps
from stepscope.analyses.launches import launches
from stepscope.opening import open_trace
from stepscope.tables import Table

Parts = dict[tuple[str, str, str | None], int]


def rows(drawing: Drawing, tmp_path: Path, **options: Any) -> list[IdleGap]:
    return list(idle_gaps(open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path), **options))


def parts(drawing: Drawing, tmp_path: Path, **options: Any) -> dict[tuple[str, str | None], float]:
    """µs by what they were spent in and by the call that drained the queue."""
    return {(row.spent_in, row.drained_by): row.idle_ns / 1000 for row in rows(drawing, tmp_path, **options)}


def launched(drawing: Drawing, corr: int, at: Any, start: Any, dur: Any, **work: Any) -> Drawing:
    """A launch of 1 µs and its kernel."""
    host = {key: work.pop(key) for key in ("thread",) if key in work}
    drawing.launch("cudaLaunchKernel", at, 1, corr=corr, **host)
    return drawing.kernel(work.pop("name", "k"), start, dur, corr=corr, **work)


# ---------------------------------------------------------------- by hand


def late() -> Drawing:
    """The device is idle from 10 to 110; the launch that ends this begins at 100.

    10..20 the call waits that had drained the queue; 20..40 the loader, an operator inside it or not; 40..60
    an operator, in it 5 of an allocation and 1 of another call; 60..90 only the mark; 90..100 an operator.
    """
    drawing = Drawing().mark(1, 0, 200)
    launched(drawing, 1, 0, 5, 5)
    drawing.launch("cudaStreamSynchronize", 5, 15)
    drawing.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 20)
    drawing.op("aten::stack", 25, 5)
    drawing.op("aten::zeros", 40, 20).launch("cudaMalloc", 45, 5).launch("cudaEventRecord", 52, 1)
    drawing.op("aten::mm", 90, 18)
    return launched(drawing, 2, 100, 110, 90)


def test_a_late_host_by_hand(tmp_path: Path) -> None:
    expected = {
        "synchronising call": 10,
        "dataloader": 20,
        "allocation call": 5,
        "other runtime call": 1,
        "host op": 14 + 10,
        "Python between ops": 30,
        "launch latency": 10,
    }
    found = parts(late(), tmp_path, window="span")
    assert found == {(cause, "cudaStreamSynchronize"): us for cause, us in expected.items()}


def test_the_window_of_the_steps(tmp_path: Path) -> None:
    # The step begins at 0: the 5 until the first kernel are latency, for its launch began then.
    found = parts(late(), tmp_path)
    assert found["launch latency", None] == 5
    assert sum(found.values()) == 105


def test_the_longest_single_gaps(tmp_path: Path) -> None:
    (gap,) = rows(late(), tmp_path, longest=1)
    assert (gap.idle_ns, gap.gaps, gap.spent_in) == (100_000, 1, "Python between ops")
    assert (gap.before, gap.after, gap.drained_by) == ("k", "k", "cudaStreamSynchronize")
    assert (gap.start_ns, gap.step) == (10_000, 1)
    assert gap.blame == "cudaStreamSynchronize → 100 µs"
    assert gap.share == 100 / 105
    assert len(rows(late(), tmp_path, longest=9)) == 2


def test_the_chain_of_blame(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).frame("train.py(7): step", 0, 100)
    launched(drawing, 1, 0, 2, 8)
    drawing.op("aten::item", 4, 10).op("aten::_local_scalar_dense", 5, 8)
    drawing.launch("cudaStreamSynchronize", 6, 6)
    drawing.op("aten::mm", 28, 8)
    launched(drawing, 2, 30, 33, 67)
    (gap,) = rows(drawing, tmp_path, window="span", longest=5)
    assert gap.blame == "aten::item → aten::_local_scalar_dense → cudaStreamSynchronize → 23.0 µs"
    assert gap.user_frame == "train.py(7): step"


def test_nothing_recorded(tmp_path: Path) -> None:
    drawing = launched(Drawing(), 1, 0, 1, 9)
    launched(drawing, 2, 40, 45, 5)
    # 10..40 nothing, 40..45 latency.
    assert parts(drawing, tmp_path, window="span") == {
        ("nothing recorded", None): 30,
        ("launch latency", None): 5,
    }


def test_time_after_the_last_work_and_before_the_first(tmp_path: Path) -> None:
    # Two devices in one step 0..100. Device 0 works 20..60, launched at 15; device 1 works 50..90, unlinked.
    drawing = Drawing().mark(1, 0, 100).op("aten::mm", 5, 11)
    launched(drawing, 1, 15, 20, 40).kernel("alone", 50, 40, device=1)
    found = {(row.device, row.spent_in): row.idle_ns / 1000 for row in rows(drawing, tmp_path)}
    assert found == {
        ("0", "Python between ops"): 5 + 40,
        ("0", "host op"): 10,
        ("0", "launch latency"): 5,
        ("1", "launch not recorded"): 50,
        ("1", "Python between ops"): 10,
    }


def test_work_that_was_launched_before(tmp_path: Path) -> None:
    drawing = Drawing()
    for corr in range(1, 8):
        drawing.launch("cudaGraphLaunch" if corr == 6 else "cudaLaunchKernel", corr, 0.5, corr=corr)
    drawing.launch("cudaLaunchKernel", 150, 40, corr=9)
    drawing.kernel("a", 100, 10, corr=1)
    drawing.kernel("b", 112, 8, corr=2)  # after 2: scheduling
    drawing.kernel("c", 125, 5, corr=3, stream=8)  # after 5: another stream
    drawing.kernel("ncclDevKernel_AllReduce", 136, 4, corr=4, stream=9)  # after 6: a collective
    drawing.kernel("d", 147, 3, corr=5, stream=8)  # after 7: a collective ran before
    drawing.kernel("e", 153, 2, corr=7, stream=8)  # after 3, not under 3: on the device
    drawing.kernel("f", 158, 1, corr=6, stream=8)  # after 3: on the device
    drawing.kernel("g", 160, 1, corr=6, stream=8)  # after 1, of one launch with f
    drawing.kernel("h", 166, 1, corr=6, stream=8)  # after 5
    drawing.kernel("i", 169, 1, corr=9, stream=8)  # after 2, and its launch is not over yet
    drawing.kernel("j", 180, 1)  # after 10, unlinked
    assert parts(drawing, tmp_path, window="span") == {
        ("device scheduling", None): 2,
        ("waited for another stream", None): 5,
        ("waited for a collective", None): 6 + 7,
        ("waited on the device", None): 3 + 3,
        ("graph latency", None): 1 + 5,
        ("launch latency", None): 2,
        ("launch not recorded", None): 10,
    }


def test_a_worker_of_autograd_looks_at_the_thread_that_called_it(tmp_path: Path) -> None:
    # Idle from 10 to 110. The worker launches at 100, in an operator from 95 on; before that it has no event.
    # The main thread is in an operator until 40, then in a frame only. It waited when the gap began.
    drawing = Drawing().frame("train.py(1): main", 0, 300)
    drawing.op("aten::mm", 0, 3, args={"Sequence number": 5, "Fwd thread id": 0})
    launched(drawing, 1, 1, 5, 5)
    drawing.launch("cudaDeviceSynchronize", 7, 8)
    drawing.op("aten::sum", 15, 25)
    backward = {"Sequence number": 5, "Fwd thread id": 1}
    drawing.op("autograd::engine::evaluate_function: MmBackward0", 95, 10, thread=2, args=backward)
    launched(drawing, 2, 100, 110, 5, thread=2)
    expected = {"synchronising call": 5, "host op": 25 + 5, "Python between ops": 55, "launch latency": 10}
    found = parts(drawing, tmp_path, window="span")
    assert found == {(cause, "cudaDeviceSynchronize"): us for cause, us in expected.items()}


def test_host_communication_is_not_python(tmp_path: Path) -> None:
    drawing = launched(Drawing(), 1, 0, 1, 9).annotation("gloo:all_reduce", 5, 50).op("aten::copy_", 35, 10)
    launched(drawing, 2, 40, 45, 5)
    assert parts(drawing, tmp_path, window="span") == {
        ("host communication", None): 25,
        ("host op", None): 5,
        ("launch latency", None): 5,
    }


def test_a_gap_over_the_edge_of_steps_counts_inside_them(tmp_path: Path) -> None:
    # Steps 0..20 and 50..100; idle 10..60. Inside: 10..20 and 50..60. The launch begins at 55.
    drawing = Drawing().mark(1, 0, 20).mark(2, 50, 50)
    launched(drawing, 1, 0, 0, 10)
    drawing.op("aten::mm", 52, 5)
    launched(drawing, 2, 55, 60, 40)
    assert parts(drawing, tmp_path) == {
        ("Python between ops", None): 10 + 2,
        ("host op", None): 3,
        ("launch latency", None): 5,
    }


# ---------------------------------------------------------------- every nanosecond

CALLS = {
    "cudaStreamSynchronize": "synchronising call",
    "cudaMalloc": "allocation call",
    "cudaFree": "allocation call",
    "cudaEventRecord": "other runtime call",
    "cudaLaunchKernel": "other runtime call",
}
RANGES = {
    "enumerate(DataLoader)#1": "dataloader",
    "mpi:send": "host communication",
    "x": "Python between ops",
}
ORDER = [
    "dataloader",
    "synchronising call",
    "allocation call",
    "other runtime call",
    "host op",
    "host communication",
    "Python between ops",
]
BLOCKING = ("cudaStreamSynchronize", "cudaFree")


def drawn(seed: int) -> Drawing:
    """Events of all kinds on two threads and two devices, some launches linked, and two steps."""
    chance = random.Random(seed)
    drawing = Drawing()
    for _ in range(90):
        at, dur = Decimal(chance.randrange(300)) / 1000, Decimal(chance.randrange(30)) / 1000
        place: dict[str, Any] = {"thread": chance.choice([1, 2])}
        kind = chance.choice("loarww")
        if kind == "l":
            drawing.launch(chance.choice(list(CALLS)), at, dur, corr=chance.randrange(40), **place)
        elif kind == "o":
            drawing.op("aten::mm", at, dur / 3, **place)
        elif kind == "a":
            drawing.annotation(chance.choice(list(RANGES)), at, dur, **place)
        elif kind == "r":
            drawing.frame("a.py(1): f", at, dur / 2, **place)
        else:
            device, stream = chance.choice([0, 1]), chance.choice([7, 8])
            name = chance.choice(["k", "k", "ncclKernel"])
            drawing.kernel(name, at, dur / 8, corr=chance.randrange(40), device=device, stream=stream)
    cut = chance.randrange(40, 200)
    drawing.mark(1, Decimal(chance.randrange(30)) / 1000, Decimal(cut - 35) / 1000, thread=3)
    return drawing.mark(2, Decimal(cut) / 1000, Decimal(chance.randrange(100)) / 1000, thread=3)


def plain(oracle: Oracle, windows: list[tuple[int, int]], *, edges: bool = False) -> Parts:
    """What every nanosecond inside the windows is lost to, from the definition."""
    found: Parts = Counter()
    works = defaultdict(list)
    for work in oracle.work:
        works[device_of(work)].append(work)
    host = [event for event in oracle.events if is_host(event)]
    for device, all_work in works.items():
        ordered = sorted(all_work, key=lambda work: (work.start, work.index))
        last = max(work.end for work in ordered)
        pairs: list[tuple[Event | None, Event]] = [(None, ordered[0])] if edges else []
        before = ordered[0]
        for after in ordered[1:]:
            pairs.append((before, after))
            before = max(before, after, key=lambda work: (work.end, work.index))
        for earlier, after in pairs:
            begin = earlier.end if earlier else windows[0][0]
            for instant in range(begin, after.start):
                if any(start <= instant < end for start, end in windows):
                    cause, drained = why(instant, begin, earlier, after, host)
                    found[device, cause, drained] += 1
        for instant in range(last, windows[-1][1]) if edges else ():
            if any(start <= instant < end for start, end in windows):
                found[device, "no work followed", None] += 1
    return dict(found)


def why(
    instant: int, begin: int, before: Event | None, after: Event, host: list[Event]
) -> tuple[str, str | None]:
    launch = after.launch
    if not launch:
        return "launch not recorded", None
    if launch.start <= begin:
        return waited(before, after, launch) if before else "launch latency", None
    calls = [event for event in host if event.thread == launch.thread and event.name in BLOCKING]
    open_then = [event for event in calls if event.start <= begin < event.end]
    drained = max(open_then, key=lambda event: (event.start, -event.end, event.index), default=None)
    name = drained.name if drained and before else None
    if instant >= launch.start:
        return "launch latency", name
    doing = [event for event in host if event.thread == launch.thread and event.start <= instant < event.end]
    kinds = [kind_of(event) for event in doing]
    return min(kinds, key=ORDER.index, default="nothing recorded"), name


def kind_of(event: Event) -> str:
    if event.category in RUNTIME:
        return CALLS[event.name]
    return "host op" if event.category in OP else RANGES.get(event.name, "Python between ops")


def waited(before: Event, after: Event, launch: Event) -> str:
    if before.launch is launch:
        return "graph latency"
    if launch.end > before.end:
        return "launch latency"
    if after.start - before.end < 3000:
        return "device scheduling"
    if is_communication(before) or is_communication(after):
        return "waited for a collective"
    other = before.args.get("stream") != after.args.get("stream")
    return "waited for another stream" if other else "waited on the device"


def found_parts(path: Path, store: Path, window: Window) -> Parts:
    table = idle_gaps(open_trace(path, store=store), window=window)
    return {(row.device, row.spent_in, row.drained_by): row.idle_ns for row in table}


@pytest.mark.parametrize("seed", range(12))
def test_every_nanosecond_of_drawn_profiles(seed: int, tmp_path: Path) -> None:
    path = drawn(seed).write(tmp_path / "a.json")
    oracle = Oracle.of(path)
    assert found_parts(path, tmp_path, "span") == plain(oracle, [(0, 10**6)])
    steps = [(start, end) for _, start, end in oracle.windows]
    assert found_parts(path, tmp_path, "steps") == plain(oracle, steps, edges=True)


# ---------------------------------------------------------------- real profiles


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_what_holds_for_every_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    """Parts sum to the idle time; what starved is what was drained; each analysis answers or says why not."""
    trace = open_shared(sample(name))
    for window in ("steps", "span"):
        idle = {row.device: row.idle_ns for row in devices(trace) if row.window == window and row.idle_ns}
        found: Counter[str] = Counter()
        table = idle_gaps(trace, window=window)
        for row in table:
            found[row.device] += row.idle_ns
            assert row.gaps > 0
        # Where nobody marked steps there is no such row of devices.
        assert dict(found) == idle or (window == "steps" and not idle)
        assert table.notes
    syncs = host_syncs(trace)
    drained = sum(row.idle_ns for row in idle_gaps(trace) if row.drained_by)
    starved = sum(row.starved_ns for row in syncs)
    outside = any(note.startswith("Outside") for note in syncs.notes)
    assert starved == drained or (outside and starved < drained)
    for launch in launches(trace):
        assert 0 <= launch.back_pressure_ns <= launch.host_ns
        assert launch.without_work <= launch.calls
    assert launches(trace).notes
    assert allocations(trace).notes


ODD = {
    "nothing": Drawing(),
    "work alone": Drawing()
    .kernel("k", 5, 1)
    .memcpy("Memcpy DtoH (Device -> Pageable)", 9, 1, device=None, pid=3),
    "host alone": Drawing().mark(1, 0, 9).op("aten::mm", 1, 2).frame("a.py(1): f", 0, 5),
    "calls alone": Drawing().launch("cudaDeviceSynchronize", 0, 5).launch("cudaMalloc", 7, 1),
    "no times": Drawing()
    .kernel("k", Literal("null"), 1, corr=1)
    .launch("cudaLaunchKernel", Literal("null"), 1, corr=1),
    "no length": Drawing()
    .mark(1, 5, 0)
    .launch("cudaFree", 5, 0, corr=1)
    .kernel("k", 5, 0, corr=1)
    .kernel("k", 5, 0),
    "endless": Drawing()
    .kernel("k", 0, 9 * 10**15, corr=1)
    .launch("cudaFree", 1, 9 * 10**15, corr=1)
    .kernel("k", 2, 1),
    "before zero": Drawing()
    .kernel("k", -50, 1)
    .kernel("k", 5, 1, corr=1)
    .launch("cuLaunchKernel", -10, 1, corr=1),
}


@pytest.mark.parametrize("drawing", ODD.values(), ids=ODD)
def test_odd_profiles(drawing: Drawing, tmp_path: Path) -> None:
    trace = open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path)
    for window in ("steps", "span"):
        idle = sum(row.idle_ns for row in devices(trace) if row.window == window)
        found = sum(row.idle_ns for row in idle_gaps(trace, window=window, longest=0))
        assert found == idle or window == "steps"
        assert sum(row.idle_ns for row in idle_gaps(trace, window=window, longest=99)) == found
    for analysis in (host_syncs, launches, allocations):
        table: Table[Any] = analysis(trace)
        assert table.notes or len(table)


def test_a_scalar_read_per_layer(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """The calls themselves hold half a millisecond of the idle time, but at least 8 ms follow them."""
    trace = open_shared(sample("h200_slow_item.pt.trace.json.gz"))
    table = list(idle_gaps(trace))
    follows = sum(row.idle_ns for row in table if row.drained_by == "cudaStreamSynchronize")
    held = sum(row.idle_ns for row in table if row.spent_in == "synchronising call")
    assert 400_000 < held < 600_000
    assert follows > 8_000_000
    assert follows > 8 * held
    blamed = {row.blame for row in table if row.drained_by}
    assert all(text and text.startswith("aten::item → aten::_local_scalar_dense →") for text in blamed)
    assert {row.user_frame for row in table if row.drained_by} == {"capture.py(85): forward"}


def test_ranks_that_wait_for_one_another(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """Rank 1 comes 30 ms late in each of three steps, in Python; rank 0 waits for it in its collectives."""
    late_ms, waiting_ms = [], []
    for rank in (0, 1):
        trace = open_shared(sample(f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz"))
        idle = Counter[str]()
        for row in idle_gaps(trace):
            idle[row.spent_in] += row.idle_ns
        late_ms.append(idle["Python between ops"] / 1e6)
        waiting_ms.append(idle["host communication"] / 1e6)
    assert late_ms[1] - late_ms[0] > 80
    assert waiting_ms[0] - waiting_ms[1] > 80


def test_a_graph(sample: Callable[[str], Path], tmp_path: Path) -> None:
    # 5 replays of 60 kernels: 59 times each the next kernel of the same launch.
    trace = open_shared(sample("h200_cuda_graph.pt.trace.json.gz"))
    gaps = {row.spent_in: row.gaps for row in idle_gaps(trace)}
    assert gaps["graph latency"] == 5 * 59


def test_no_device(tmp_path: Path) -> None:
    table = idle_gaps(open_trace(Drawing().op("aten::mm", 0, 1).write(tmp_path / "a.json"), store=tmp_path))
    assert (len(table), table.notes) == (0, ("No device work in the profile.",))
