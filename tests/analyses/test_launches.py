"""Launches: what they cost the host, how long work waits for its turn, how full the queue is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from tests.drawing import Drawing
from tests.oracle import Event, Oracle
from tests.samples import open_shared

from stepscope.analyses.launches import Launch, launches
from stepscope.opening import open_trace
from stepscope.tables import Table


def table(drawing: Drawing, tmp_path: Path) -> Table[Launch]:
    return launches(open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path))


def test_by_hand(tmp_path: Path) -> None:
    # Four launches at 10, 20, 30, 40 of 4, 4, 6, 10; their work begins at 15, 35, 50, 50.
    # In the queue before them: none; none; that of 20; those of 30 (50) only, for that of 20 began at 35.
    drawing = Drawing().mark(1, 0, 100).mark(2, 100, 100)
    drawing.launch("cudaLaunchKernel", 5, 1, corr=9).launch("cudaLaunchKernel", 250, 1, corr=10)
    drawing.kernel("outside", 255, 1, corr=10)
    for corr, (at, dur) in enumerate([(10, 4), (20, 4), (30, 6), (40, 10)]):
        drawing.launch("cudaLaunchKernel", at, dur, corr=corr)
    drawing.kernel("k", 15, 3, corr=0).kernel("k", 35, 15, corr=1)
    drawing.kernel("k", 50, 5, corr=2).kernel("k", 50, 10, corr=3, stream=8)
    found = table(drawing, tmp_path)
    (row,) = found
    assert (row.calls, row.per_step, row.without_work, row.work_events) == (5, 2.5, 1, 4)
    assert (row.host_ns, row.host_mean_ns, row.host_median_ns) == (25_000, 5000, 4000)
    assert row.host_share == 25 / 200
    # 5, 15, 20, 10
    assert (row.delay_mean_ns, row.delay_median_ns) == (12_500, 12_500)
    assert row.delay_p95_ns == pytest.approx(19_250)
    assert (row.queue_median, row.queue_max, row.back_pressure_ns) == (0.5, 1, 0)
    # Of 3 in 4 and 5 in 6 microseconds; 15 is not short, and 10 is not under 10.
    assert row.short_kernels == 2
    assert (row.work_ns, row.work_median_ns) == (33_000, 7500)
    assert found.notes == ("The host spent 25.0 µs in launches, 12.5 % of the marks.",)


def test_marks_that_overlap_count_once(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).mark(2, 50, 100, thread=2)
    drawing.launch("cudaLaunchKernel", 60, 4, corr=1).kernel("k", 70, 3, corr=1)
    drawing.launch("cudaLaunchKernel", 120, 4, corr=2).kernel("k", 130, 20, corr=2)
    (row,) = table(drawing, tmp_path)
    assert (row.calls, row.short_kernels, row.work_median_ns) == (2, 1, 11_500)


def test_a_graph_is_one_launch(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100).launch("cudaGraphLaunch", 10, 30, corr=1)
    for number in range(20):
        drawing.kernel("k", 50 + number, 1, corr=1, args={"graph id": 3})
    drawing.launch("cudaLaunchKernel", 45, 2, corr=2).kernel("l", 80, 1, corr=2)
    graph, kernel = table(drawing, tmp_path)
    assert (graph.call, graph.calls, graph.work_events, graph.work_per_call) == ("cudaGraphLaunch", 1, 20, 20)
    assert (graph.delay_mean_ns, graph.short_kernels, graph.work_ns) == (40_000, 0, 20_000)
    # In the queue is the graph, once.
    assert (kernel.queue_max, kernel.short_kernels) == (1, 1)


def test_devices_have_queues_of_their_own(tmp_path: Path) -> None:
    drawing = Drawing().mark(1, 0, 100)
    for corr in range(3):
        drawing.launch("cudaLaunchKernel", corr, 1, corr=corr).kernel(
            "k", 50 + corr, 1, corr=corr, device=corr
        )
    (row,) = table(drawing, tmp_path)
    assert row.queue_max == 0


def test_back_pressure(tmp_path: Path) -> None:
    # The device begins when 1,010 launches are queued. From then on each call takes 20 in place of 4.
    drawing = Drawing().mark(1, 0, 100_000)
    for corr in range(1010):
        drawing.launch("cudaLaunchKernel", 5 * corr, 4, corr=corr).kernel(
            "k", 6000 + 25 * corr, 25, corr=corr
        )
    for corr in range(1010, 1050):
        at = 6000 + 25 * (corr - 1010)
        drawing.launch("cudaLaunchKernel", at, 20, corr=corr).kernel("k", 6000 + 25 * corr, 25, corr=corr)
    found = table(drawing, tmp_path)
    (row,) = found
    # Each of the last 40 finds 1,009 in the queue. Ten of the first find it full, too, and take no longer.
    assert row.queue_max == 1009
    assert row.back_pressure_ns == 40 * 16_000
    assert found.notes[1] == "Of this, 640 µs is back-pressure: the queue held 1,000 launches or more."


def test_no_launches(tmp_path: Path) -> None:
    found = table(Drawing().mark(1, 0, 10).op("aten::mm", 0, 1), tmp_path)
    assert (len(found), found.notes) == (0, ("No call in a step launched device work.",))


# ---------------------------------------------------------------- real profiles


def queues(oracle: Oracle) -> dict[int, int]:
    """For each launch how many were made before it whose work had not begun."""
    first: dict[int, Event] = {}
    for work in oracle.work:
        if work.launch:
            known = first.get(work.launch.index)
            first[work.launch.index] = work if known is None or work.start < known.start else known
    made = defaultdict(list)
    for work in first.values():
        assert work.launch
        made[work.args.get("device")].append((work.launch, work.start))
    found = {}
    for pairs in made.values():
        starts, begun = sorted(launch.start for launch, _ in pairs), sorted(start for _, start in pairs)
        for launch, _ in pairs:
            queued = bisect_left(starts, launch.start) - bisect_right(begun, launch.start)
            found[launch.index] = max(queued, 0)
    return found


REAL = [
    "h200_cuda_graph.pt.trace.json.gz",
    "h200_ddp_gloo_rank1.pt.trace.json.gz",
    "hta_amd_mi250.json.gz",
    "hta_ns_resolution.json.gz",
    "hta_sampled_rank-1.json.gz",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_launches_as_in_the_file(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = sample(name)
    oracle = Oracle.of(path)
    rows = list(launches(open_shared(path)))
    marks = [mark.span for mark, _, _ in oracle.windows]
    depths, calls, work_ns = defaultdict(list), Counter[str](), Counter[str]()
    queued = queues(oracle)
    for work in oracle.work:
        launch = work.launch
        if launch and any(start <= launch.start < end for start, end in marks):
            work_ns[launch.name] += work.dur
            if launch.index in queued:
                depths[launch.name].append(queued.pop(launch.index))
                calls[launch.name] += 1
    assert {row.call: row.work_ns for row in rows if row.work_events} == work_ns
    assert {row.call: row.calls - row.without_work for row in rows if row.work_events} == calls
    assert {row.call: row.queue_max for row in rows if row.work_events} == {
        name: max(found) for name, found in depths.items()
    }
    assert {row.call: row.queue_median for row in rows if row.work_events} == {
        name: median(found) for name, found in depths.items()
    }


def test_a_full_queue(sample: Callable[[str], Path], tmp_path: Path) -> None:
    """The host is 80 ms ahead: most of the time in launches is waiting for a place in the queue."""
    rows = list(launches(open_shared(sample("hta_ns_resolution.json.gz"))))
    assert max(row.queue_max or 0 for row in rows) == 1021
    assert sum(row.back_pressure_ns for row in rows) > 0.8 * sum(row.host_ns for row in rows)
