"""Replayed graphs: what they hold, and which operators they repeat."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope import _native
from stepscope.analyses.graph_replays import GraphReplay, graph_replays
from stepscope.store.trace import Trace

RECORDED = Path(__file__).parent.parent / "data" / "recordings" / "cuda_graph.pt.trace.json.gz"
REPLAYED = ["h200_cuda_graph.pt.trace.json.gz", "tl_vllm_decode_full_graph.json.gz"]
KERNELS = [("gemm", 8), ("relu", 4), ("sum", 1)]


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(str(drawing.write(folder / "drawn.json")), store=folder / "store")


def shape(grid: int) -> dict[str, Any]:
    return {"grid": [grid, 1, 1], "block": [128, 1, 1]}


def layer(drawing: Drawing, start: int, corr: int, module: str = "Layer_0", stream: int = 7) -> None:
    """Operators that launch the three kernels one by one, inside a module; takes 30 µs."""
    drawing.frame(f"nn.Module: {module}", start, 30)
    for number, (name, grid) in enumerate(KERNELS):
        at = start + 10 * number
        drawing.op(f"aten::{name}", at, 8).launch("cudaLaunchKernel", at + 1, 1, corr=corr + number)
        drawing.kernel(name, at + 4, 2, corr=corr + number, stream=stream, args=shape(grid))


def replay(
    drawing: Drawing, start: int, corr: int, kernels: list[tuple[str, int]] = KERNELS, stream: int = 9
) -> None:
    """One launch of a graph: kernels of 2 µs with 1 µs between, from 5 µs after the launch on."""
    drawing.launch("cudaGraphLaunch", start, 3, corr=corr)
    for number, (name, grid) in enumerate(kernels):
        args = {**shape(grid), "graph id": 1, "graph node id": number}
        drawing.kernel(name, start + 5 + 3 * number, 2, corr=corr, stream=stream, args=args)


def known(trace: Trace) -> list[tuple[Any, ...]]:
    """For each piece of replayed work: kernel, operator, module, phase, basis."""
    rows = trace.arrow(
        """
        SELECT w.name AS kernel, o.name AS op, m.name AS module, r.phase, r.basis
        FROM replays r JOIN device_work w ON w.event = r.event LEFT JOIN ops o ON o.event = r.op
        LEFT JOIN call_tree m ON m.node = r.module ORDER BY w.start_ns
        """
    )
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_a_replay_repeats_an_eager_stretch(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 50).mark(2, 50, 50)
    # A kernel before and one after do not matter: the stretch is inside.
    drawing.op("aten::fill_", 0, 2).launch("cudaLaunchKernel", 0, 1, corr=1).kernel("fill", 2, 1, corr=1)
    layer(drawing, 5, 10)
    drawing.launch("cudaLaunchKernel", 40, 1, corr=2).kernel("relu", 41, 1, corr=2, args=shape(4))
    replay(drawing, 60, 20)
    trace = opened(drawing, tmp_path)
    assert known(trace) == [
        ("gemm", "aten::gemm", "nn.Module: Layer_0", "forward", "eager"),
        ("relu", "aten::relu", "nn.Module: Layer_0", "forward", "eager"),
        ("sum", "aten::sum", "nn.Module: Layer_0", "forward", "eager"),
    ]
    table = graph_replays(trace)
    # Launched at 60: work from 65 to 73, of which twice 1 µs is idle.
    assert list(table) == [
        GraphReplay(2, 60_000, 0, "0", 3, 0, 0, 3_000, 5_000, 8_000, 6_000, 2_000, 6_000, "eager", 1.0)
    ]
    assert table.notes == ("1 replays of 1 graph.",)


@pytest.mark.parametrize(
    "kernels",
    [
        [("gemm", 8), ("relu", 5), ("sum", 1)],  # another launch shape
        [("gemm", 8), ("sum", 1), ("relu", 4)],  # another order
        [("gemm", 8), ("relu", 4), ("sum", 1), ("sum", 1)],  # more than there was
        [("gemm", 8), ("relu", 4)],  # too few to be no chance
    ],
    ids=["shape", "order", "length", "chance"],
)
def test_what_is_not_quite_alike_stays_unknown(kernels: list[tuple[str, int]], tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    layer(drawing, 5, 10)
    replay(drawing, 60, 20, kernels)
    trace = opened(drawing, tmp_path)
    assert known(trace) == [(name, None, None, None, None) for name, _ in kernels]
    (row,) = graph_replays(trace)
    assert (row.basis, row.known_share) == (None, 0.0)
    assert "Of 1 the operators are not known" in graph_replays(trace).notes[0]


def test_work_without_a_launch_is_like_nothing(tmp_path: Path) -> None:
    # A replay that was launched before the profile began.
    drawing = Drawing().mark(1, 50, 100)
    for number, (name, grid) in enumerate(KERNELS):
        drawing.kernel(name, 5 + number, 1, corr=99, args=shape(grid))
    replay(drawing, 60, 20)
    assert {row[-1] for row in known(opened(drawing, tmp_path))} == {None}


def test_a_stretch_is_on_one_stream(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    layer(drawing, 5, 10)
    for event in drawing.events[-3:]:
        if event["name"] == "sum":
            event["args"]["stream"] = event["tid"] = 8
    replay(drawing, 60, 20)
    assert {row[-1] for row in known(opened(drawing, tmp_path))} == {None}


def test_layers_that_look_alike_do_not_tell_the_module(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 200)
    layer(drawing, 5, 10, "Layer_0")
    layer(drawing, 40, 20, "Layer_1")
    replay(drawing, 100, 30)
    replay(drawing, 120, 40, [*KERNELS, *KERNELS])
    rows = known(opened(drawing, tmp_path))
    assert rows[0] == ("gemm", "aten::gemm", None, "forward", "eager")
    # The graph of both layers occurs once, so it is known which is which.
    assert [row[2] for row in rows[3:]] == ["nn.Module: Layer_0"] * 3 + ["nn.Module: Layer_1"] * 3


def test_a_replay_repeats_its_capture(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    drawing.launch("cudaStreamBeginCapture", 2, 1, corr=1)
    drawing.frame("nn.Module: Layer_0", 4, 30)
    for number, (name, call) in enumerate(
        [("mm", "cudaLaunchKernel"), ("zero_", "cudaMemsetAsync"), ("add", "cuLaunchKernelEx")]
    ):
        drawing.op(f"aten::{name}", 5 + 5 * number, 4).launch(call, 6 + 5 * number, 1, corr=10 + number)
    drawing.launch("cudaStreamIsCapturing", 30, 1, corr=20).launch("cudaStreamEndCapture", 40, 1, corr=21)
    drawing.launch("cudaGraphLaunch", 60, 3, corr=30).kernel("gemm", 65, 2, corr=30)
    drawing.memset("Memset (Device)", 67, 1, corr=30).kernel("add", 68, 3, corr=30)
    # A graph of other kinds was captured elsewhere.
    drawing.launch("cudaGraphLaunch", 80, 3, corr=31).kernel("gemm", 85, 2, corr=31)
    drawing.kernel("add", 87, 1, corr=31).kernel("add", 89, 1, corr=31)
    trace = opened(drawing, tmp_path)
    assert known(trace) == [
        ("gemm", "aten::mm", "nn.Module: Layer_0", "forward", "capture"),
        ("Memset (Device)", "aten::zero_", "nn.Module: Layer_0", "forward", "capture"),
        ("add", "aten::add", "nn.Module: Layer_0", "forward", "capture"),
        ("gemm", None, None, None, None),
        ("add", None, None, None, None),
        ("add", None, None, None, None),
    ]
    assert [(row.graph, row.kernels, row.fills, row.basis) for row in graph_replays(trace)] == [
        (0, 2, 1, "capture"),
        (1, 3, 0, None),
    ]


def test_work_side_by_side_is_busy_once(tmp_path: Path) -> None:
    # Kernels from 10 to 20 and from 12 to 15 on two streams, and from 30 to 31: 21 µs, of which 10 idle.
    drawing = Drawing().launch("cudaGraphLaunch", 5, 1, corr=1).kernel("a", 10, 10, corr=1)
    drawing.kernel("b", 12, 3, corr=1, stream=8).memcpy("Memcpy DtoD (Device -> Device)", 30, 1, corr=1)
    (row,) = graph_replays(opened(drawing, tmp_path))
    assert (row.span_ns, row.busy_ns, row.idle_ns, row.work_ns) == (21_000, 11_000, 10_000, 14_000)
    assert (row.kernels, row.copies) == (2, 1)


def test_a_step_recorded_on_a_gpu(tmp_path: Path) -> None:
    """Two eager steps, the capture of the same step, three replays: what they repeat is known in two ways."""
    eager = stepscope.open(str(RECORDED), store=tmp_path / "store")
    launched = eager.arrow(
        """
        SELECT w.name AS kernel, o.name AS op FROM device_work w JOIN ops o ON o.event = w.op
        JOIN call_sites p ON p.event = w.launch WHERE p.step = 2 ORDER BY w.start_ns
        """
    )
    expected = [tuple(row.values()) for row in launched.to_pylist()]
    assert len(expected) == 19
    found = known(eager)
    assert [row[:2] for row in found] == 3 * expected
    assert {row[3:] for row in found} == {(phase, "eager") for phase in ("forward", "backward", "optimizer")}
    assert [(row.step, row.basis, row.known_share) for row in graph_replays(eager)] == [
        (step, "eager", 1.0) for step in (5, 6, 7)
    ]
    # The same profile without the kernels of the eager steps: now the capture has to say it.
    with gzip.open(RECORDED, "rt", encoding="utf-8") as file:
        profile = json.load(file)
    graphs = {e["args"]["correlation"] for e in profile["traceEvents"] if e.get("name") == "cudaGraphLaunch"}
    profile["traceEvents"] = [
        e for e in profile["traceEvents"] if e.get("cat") != "kernel" or e["args"]["correlation"] in graphs
    ]
    (tmp_path / "cut.json").write_text(json.dumps(profile), encoding="utf-8")
    captured = known(stepscope.open(str(tmp_path / "cut.json"), store=tmp_path / "cut"))
    assert [row[:4] for row in captured] == [row[:4] for row in found]
    assert {row[4] for row in captured} == {"capture"}


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_every_profile_has_an_answer(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    trace = open_shared(sample(name))
    table = graph_replays(trace)
    assert bool(len(table)) == (name in REPLAYED)
    assert len(table) or table.notes == ("No graph was replayed.",)
    # The table is there for every profile, and it holds all work of graph launches.
    launched = (
        "SELECT sum(work_events)::BIGINT AS n, count(*) AS m FROM launches WHERE name LIKE '%GraphLaunch'"
    )
    (calls,) = trace.arrow(launched).to_pylist()
    (rows,) = trace.arrow("SELECT count(*) AS n, count(DISTINCT launch) AS m FROM replays").to_pylist()
    assert rows == {"n": calls["n"] or 0, "m": calls["m"]}
    for row in table:
        assert row.busy_ns + row.idle_ns == row.span_ns
        assert row.busy_ns <= row.work_ns


def test_stretches_are_found_as_by_looking_everywhere() -> None:
    """Few tokens, so that much looks alike; against the plainest search there is."""
    import random

    choice = random.Random(5)
    for _ in range(300):
        streams = [[choice.randrange(3) for _ in range(choice.randrange(30))] for _ in range(3)]
        needles = [[choice.randrange(3) for _ in range(choice.randrange(1, 5))] for _ in range(4)]
        finder = _native.StretchFinder()
        for number, needle in enumerate(needles):
            work = [100 * number + place for place in range(len(needle))]
            finder.add_replayed(longs([number] * len(needle)), longs(needle), longs(work))
        for number, tokens in enumerate(streams):
            events = longs([1000 * number + place for place in range(len(tokens))])
            finder.add_eager(longs([number] * len(tokens)), longs(tokens), events)
        finder.find(1, 4)
        replayed = [list(values) for values, _ in finder.take_replays()]
        columns = [list(values) for values, _ in finder.take_stretches()]
        found: dict[tuple[int, int], list[int]] = {}
        for sequence, stretch, place, event in zip(*columns, strict=True):
            assert place == len(found.setdefault((sequence, stretch), []))
            found[sequence, stretch].append(event)
        assert [(event, launch, place) for event, launch, _, place in zip(*replayed, strict=True)] == [
            (100 * number + place, number, place)
            for number, needle in enumerate(needles)
            for place in range(len(needle))
        ]
        sequences = dict(zip(replayed[1], replayed[2], strict=True))
        for number, needle in enumerate(needles):
            expected = occurrences(streams, needle)[:4]
            assert [found.get((sequences[number], nth)) for nth in range(len(expected))] == expected
            assert (sequences[number], len(expected)) not in found


def longs(values: list[int]) -> memoryview:
    import array

    return memoryview(array.array("q", values))


def occurrences(streams: list[list[int]], needle: list[int]) -> list[list[int]]:
    found = []
    for number, tokens in enumerate(streams):
        at = 0
        while at + len(needle) <= len(tokens):
            if tokens[at : at + len(needle)] == needle:
                found.append([1000 * number + at + place for place in range(len(needle))])
                at += len(needle)
            else:
                at += 1
    return found
