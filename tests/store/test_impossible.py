"""Impossible durations of device work: found, clipped, said; and everything else as it was recorded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.samples import DATA

import stepscope
from stepscope.analyses.kernels import kernels
from stepscope.analyses.ops import ops
from stepscope.analyses.steps import steps
from stepscope.analyses.trust import trust
from stepscope.store import links
from stepscope.store.export import export
from stepscope.store.trace import Trace

GEMM: dict[str, Any] = {"grid": [8, 1, 1], "block": [128, 1, 1]}


def stream(count: int = 60, **lengths: float) -> Drawing:
    """Kernels of 20 µs that follow each other every 100 µs; `lengths` of some, by number."""
    drawing = Drawing().mark(0, 0, count * 100)
    for number in range(count):
        dur = lengths.get(f"k{number}", 20)
        drawing.op("aten::mm", number * 100, 50).launch(
            "cudaLaunchKernel", number * 100 + 5, 5, corr=number + 1
        )
        drawing.kernel("gemm", number * 100 + 30, dur, corr=number + 1, args=GEMM)
    return drawing


def opened(drawing: Drawing, folder: Path) -> Trace:
    return stepscope.open(drawing.write(folder / "drawn.json"), store=folder / "store")


def clipped(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, duration and recorded duration of what was clipped."""
    work = trace.reading({"device_work": ("name", "dur_ns", "recorded_ns", "start_ns")}, ours=True)
    rows = work.rows("SELECT * FROM device_work WHERE recorded_ns IS NOT NULL ORDER BY start_ns")
    return [(row["name"], row["dur_ns"], row["recorded_ns"]) for row in rows]


def test_work_beyond_its_equals_counts_as_one_of_them(tmp_path: Path) -> None:
    trace = opened(stream(k10=3_000_000, k20=50_000), tmp_path)
    assert clipped(trace) == [("gemm", 20_000, 3_000_000_000), ("gemm", 20_000, 50_000_000)]
    # Every total is that of a profile without the fault.
    (gemm,) = kernels(trace)
    assert (gemm.calls, gemm.total_ns, gemm.max_ns) == (60, 60 * 20_000, 20_000)
    assert [row.device_self_ns for row in ops(trace)] == [60 * 20_000]
    assert [row.dur_ns for row in steps(trace)] == [6_000_000]
    (found,) = (doubt for doubt in trust(trace) if doubt.what == "impossible durations")
    assert (found.count, found.effect_ns) == (2, 3_050_000_000 - 40_000)
    assert found.effect_share == pytest.approx((3_050_000 - 40) / (3_050_000 - 40 + 1200))


def test_work_without_equals_ends_where_the_next_begins(tmp_path: Path) -> None:
    drawing = stream(k10=20).kernel("once", 1040, 2_000, corr=900, args=GEMM)
    assert clipped(opened(drawing, tmp_path)) == [("once", 90_000, 2_000_000)]


@pytest.mark.parametrize(
    "why, drawing",
    [
        ("the next kernel began early, as programmatic launch allows", stream(k10=130, k20=199)),
        ("the last work of a stream: nothing followed", stream(k59=5_000_000)),
        ("a collective waits for its peers", stream().kernel("ncclKernel_AllReduce", 1040, 3_000, corr=900)),
        ("another stream", stream().kernel("once", 1040, 3_000, corr=900, stream=20, args=GEMM)),
        ("one launch: a graph with branches", stream().kernel("branch", 1040, 90, corr=900)),
        (
            "hardware queues of AMD hold several streams",
            stream().launch("hipLaunchKernel", 1, 1).kernel("once", 1040, 3_000, corr=900, args=GEMM),
        ),
        (
            "copies of other sizes are no equals",
            stream(4)
            .memcpy("Memcpy", 1000, 5, corr=800, args={"bytes": 8})
            .memcpy("Memcpy", 1100, 5, corr=801, args={"bytes": 8})
            .memcpy("Memcpy", 1200, 5, corr=802, args={"bytes": 8})
            .memcpy("Memcpy", 990, 900, corr=803, args={"bytes": 1 << 30}),
        ),
    ],
)
def test_what_is_possible_stays(why: str, drawing: Drawing, tmp_path: Path) -> None:
    trace = opened(drawing, tmp_path)
    assert clipped(trace) == [], why
    assert "impossible durations" not in {row.what for row in trust(trace)}


def test_branches_of_one_graph_stay(tmp_path: Path) -> None:
    drawing = Drawing().launch("cudaGraphLaunch", 0, 5, corr=1)
    for number in range(40):
        drawing.kernel("gemm", 100 + number * 100, 20, corr=1, args=GEMM)
    drawing.kernel("branch", 110, 3_900, corr=1, args=GEMM)
    assert clipped(opened(drawing, tmp_path)) == []


def test_a_stream_that_overlaps_all_over_is_none(tmp_path: Path) -> None:
    """Streams of two processes with one number: long kernels beside short ones are what ran."""
    drawing = stream()
    for number in range(10):
        drawing.kernel(f"long_{number}", number * 500 + 1, 2_000, corr=500 + number, args=GEMM)
    assert clipped(opened(drawing, tmp_path)) == []


@pytest.mark.parametrize("piece", [1 << 16, 7])
def test_in_any_order_and_in_small_pieces(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "PIECE", piece)
    monkeypatch.setattr(links, "IN_MEMORY", 4096)
    trace = opened(stream(k10=3_000_000, k55=3_000_000).shuffled(3), tmp_path)
    assert clipped(trace) == [("gemm", 20_000, 3_000_000_000)] * 2


def test_a_copy_of_the_profile_says_what_the_profile_said(tmp_path: Path) -> None:
    trace = opened(stream(k10=3_000_000), tmp_path)
    export(trace, str(tmp_path / "copy.json"))
    events = json.loads((tmp_path / "copy.json").read_text())["traceEvents"]
    assert max(event["dur"] for event in events if event.get("cat") == "kernel") == 3_000_000


def test_a_few_kernels_of_a_real_profile(tmp_path: Path) -> None:
    """Seven kernels of two seconds: the totals stay within one per cent."""
    told = json.loads(gzip.decompress((DATA / "h200_resnet50.pt.trace.json.gz").read_bytes()))
    work = [event for event in told["traceEvents"] if event.get("cat") == "kernel"]
    whole = sum(round(event["dur"] * 1000) for event in work)
    for at in range(1, 8):
        work[at * len(work) // 9]["dur"] = 2e6 + at
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(told))
    trace = stepscope.open(broken, store=tmp_path / "store")
    assert len(clipped(trace)) == 7
    assert sum(row.total_ns for row in kernels(trace)) == pytest.approx(whole, rel=0.01)
