"""Totals and curves of a stretch of time, against slow ones that look at every instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.samples import DATA, open_shared

from stepscope.analyses._counter_tracks import Curve, Frame, curves
from stepscope.analyses._every_gap import every_gap, gap_boxes, idle_by_cause
from stepscope.analyses._idle import CAUSES
from stepscope.analyses._range_totals import device_totals, thread_totals
from stepscope.analyses.devices import devices
from stepscope.analyses.idle_gaps import idle_gaps
from stepscope.store.cutting import extent
from stepscope.store.trace import Trace

SAMPLES = ["h200_slow_item", "h200_cuda_graph", "h200_ddp_gloo_rank0", "h200_prefetch_serial"]
pytestmark = pytest.mark.slow


def opened(name: str) -> Trace:
    return open_shared(DATA / f"{name}.pt.trace.json.gz")


def ranges(trace: Trace) -> list[tuple[int, int]]:
    """Whole, a part in the middle, one instant, and one past the end."""
    first, last = extent(trace.reading(None))
    middle = (first + last) // 2
    wide = (last - first) // 40
    return [(first, last), (middle, middle + wide), (middle + 7, middle + 8), (last - wide, last + wide)]


def union(spans: list[tuple[int, int]]) -> int:
    total, reached = 0, -(1 << 62)
    for low, high in sorted(spans):
        total += max(0, high - max(low, reached))
        reached = max(reached, high)
    return total


def work_in(trace: Trace, low: int, high: int) -> Iterator[dict[str, Any]]:
    """Work of devices, clipped, as the documented view has it."""
    base = trace.meta.base_ns
    for row in trace.rows(
        "SELECT event, name, kind, device_name, start_ns, dur_ns, bytes, communicates FROM device_work"
    ):
        start = row["start_ns"] - base
        span = (max(start, low), min(start + (row["dur_ns"] or 0), high))
        if span[0] < span[1]:
            yield {**row, "span": span, "start_ns": start}


@pytest.mark.parametrize("name", SAMPLES)
def test_devices_of_a_range(name: str) -> None:
    trace = opened(name)
    for low, high in ranges(trace):
        work = list(work_in(trace, low, high))
        for device in device_totals(trace, low, high, None, causes=True):
            mine = [row for row in work if row["device_name"] == device["device"]]
            assert device["busy_ns"] == union([row["span"] for row in mine])
            assert device["busy_ns"] + device["idle_ns"] == high - low
            assert sum(part["idle_ns"] for part in device["idle"]) == device["idle_ns"]
            times: Counter[str] = Counter()
            for row in mine:
                times[row["name"]] += row["span"][1] - row["span"][0]
            assert device["time_ns"] == sum(times.values())
            assert device["calls"] == len(mine)
            assert {row["name"]: row["time_ns"] for row in device["names"]} == dict(
                sorted(times.items(), key=lambda one: (-one[1], one[0]))[:20]
            )
            copied = sum(
                row["bytes"] or 0 for row in mine if row["kind"] == "memcpy" and row["start_ns"] >= low
            )
            assert sum(row["bytes"] for row in device["copies"]) == copied


@pytest.mark.parametrize("name", SAMPLES)
def test_threads_of_a_range(name: str) -> None:
    trace = opened(name)
    rows = trace.reading(None).rows(
        """SELECT t.event, t.thread, n.text AS name, t.start_ns, t.dur_ns FROM stored.host_tree t
           LEFT JOIN stored.names n ON n.id = t.name WHERE t.dur_ns > 0"""
    )
    for low, high in ranges(trace)[1:]:
        told = {one["track"]: one for one in thread_totals(trace, low, high, None)}
        for thread in {row["thread"] for row in rows}:
            inside = [
                (max(row["start_ns"], low), min(row["start_ns"] + row["dur_ns"], high), row)
                for row in rows
                if row["thread"] == thread
                and row["start_ns"] < high
                and row["start_ns"] + row["dur_ns"] > low
            ]
            if not inside:
                assert thread not in told
                continue
            one = told[thread]
            assert one["covered_ns"] == union([(start, end) for start, end, _ in inside])
            assert one["covered_ns"] + one["empty_ns"] == high - low
            own = innermost(inside)
            for listed in one["names"]:
                assert listed["self_ns"] <= own[listed["name"]]  # one name may be of several kinds
            if one["names_count"] <= 20:
                assert sum(listed["self_ns"] for listed in one["names"]) == one["covered_ns"]


def innermost(inside: list[tuple[int, int, dict[str, Any]]]) -> Counter[str | None]:
    """For every stretch between two edges: what began last and ends first."""
    edges = sorted({edge for start, end, _ in inside for edge in (start, end)})
    own: Counter[str | None] = Counter()
    for start, end in pairwise(edges):
        here = [row for low, high, row in inside if low <= start and high >= end]
        if here:
            row = max(here, key=lambda one: (one["start_ns"], -one["dur_ns"], one["event"]))
            own[row["name"]] += end - start
    return own


@pytest.mark.parametrize("name", SAMPLES)
def test_every_gap_sums_to_what_idle_gaps_says(name: str) -> None:
    trace = opened(name)
    summed: Counter[tuple[str, str]] = Counter()
    for row in idle_gaps(trace, window="span"):
        summed[row.device, row.spent_in] += row.idle_ns
    found = idle_by_cause(trace, -(1 << 62), 1 << 62)
    told = {(device, CAUSES[cause].value): ns for device, of in found.items() for cause, ns in of.items()}
    assert told == dict(summed)


@pytest.mark.parametrize("name", SAMPLES)
def test_boxes_of_gaps_lose_no_time_and_are_few(name: str) -> None:
    trace = opened(name)
    first, last = extent(trace.reading(None))
    pixel = (last - first) // 100
    boxes = gap_boxes(trace, first, last, pixel)
    gaps = every_gap(trace).gaps
    assert sum(box["idle_ns"] for box in boxes) == sum(gaps["idle_ns"].to_pylist())
    assert sum(box["count"] for box in boxes) == gaps.num_rows
    assert len(boxes) <= 2 * 101 * len({box["device"] for box in boxes})
    for box in boxes:
        assert sum(box["parts"].values()) == box["idle_ns"]
        assert box["count"] == 1 or box["after"] is None


def drawn(trace: Trace, frame: Frame) -> dict[str, Curve]:
    return {curve.id: curve for curve in curves(trace, frame)}


@pytest.mark.parametrize("name", SAMPLES)
def test_curves_of_devices_sum_to_what_the_analysis_says(name: str) -> None:
    trace = opened(name)
    first, last = extent(trace.reading(None))
    frame = Frame(first, -(-(last - first) // 777), 777)
    found = drawn(trace, frame)
    for row in devices(trace):
        if row.window != "span":
            continue
        busy = found[f"busy:{row.device}"]
        assert round(sum(busy.mean) * frame.pixel_ns) == row.busy_ns
        if row.sm_efficiency_share is not None:
            filled = sum(found[f"sm:{row.device}"].mean) * frame.pixel_ns
            assert filled == pytest.approx(row.sm_efficiency_share * row.window_ns, rel=1e-9)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_queue_is_what_was_launched_and_is_not_done(name: str) -> None:
    trace = opened(name)
    low, high = ranges(trace)[1]
    frame = Frame(low, -(-(high - low) // 20), 20)
    calls = trace.reading(None).rows(
        """SELECT l.start_ns AS begun, w.start_ns + coalesce(w.dur_ns, 0) AS done FROM stored.device_work w
           JOIN stored.launches l ON l.event = w.launch
           WHERE l.start_ns < w.start_ns + coalesce(w.dur_ns, 0)"""
    )
    curve = next((one for key, one in drawn(trace, frame).items() if key.startswith("queue:")), None)
    for pixel in range(frame.pixels):
        start, end = low + pixel * frame.pixel_ns, low + (pixel + 1) * frame.pixel_ns
        edges = sorted(
            {start, *(one[key] for one in calls for key in ("begun", "done") if start < one[key] < end)}
        )
        depths = [sum(one["begun"] <= edge < one["done"] for one in calls) for edge in edges]
        spent = sum(max(0, min(one["done"], end) - max(one["begun"], start)) for one in calls)
        if curve is None or pixel not in curve.start:
            assert spent == 0
            continue
        at = curve.start.index(pixel)
        assert (curve.min[at], curve.max[at]) == (min(depths), max(depths))
        assert curve.mean[at] * frame.pixel_ns == pytest.approx(spent)


def test_memory_holds_its_level_between_events() -> None:
    trace = opened("h200_slow_item")
    low, high = ranges(trace)[1]
    frame = Frame(low, -(-(high - low) // 50), 50)
    curve = drawn(trace, frame)["allocated:0"]
    rows = trace.reading(None).rows(
        """SELECT start_ns, allocated_bytes FROM stored.memory_events WHERE device_type = 1 AND device = 0
           ORDER BY start_ns, event"""
    )
    for at, pixel in enumerate(curve.start):
        start, end = low + pixel * frame.pixel_ns, low + (pixel + 1) * frame.pixel_ns
        before = [row["allocated_bytes"] for row in rows if row["start_ns"] <= start][-1:]
        inside = {row["start_ns"]: row["allocated_bytes"] for row in rows if start < row["start_ns"] < end}
        assert (curve.min[at], curve.max[at]) == (
            min([*before, *inside.values()]),
            max([*before, *inside.values()]),
        )
