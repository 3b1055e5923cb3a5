"""An event with all that is known of it, against the profile itself and slow searches."""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any

import pytest
from tests import trying
from tests.samples import DATA, open_shared

from stepscope.analyses._event_details import event_details
from stepscope.errors import StepscopeError
from stepscope.store.places import HOST_TABLES, places_of
from stepscope.store.trace import Trace

SAMPLES = trying.some(["h200_slow_item", "h200_ddp_gloo_rank0", "h200_cuda_graph"], 2)
pytestmark = pytest.mark.slow
TABLES = ("python_frames", "ops", "launches", "device_work", "annotations", "memory_events", "other_events")


@cache
def profile(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.pt.trace.json.gz") as file:
        return list(json.load(file)["traceEvents"])


def opened(name: str) -> Trace:
    return open_shared(DATA / f"{name}.pt.trace.json.gz")


def some(trace: Trace, table: str, count: int) -> list[int]:
    """Events of a table, from all over it."""
    rows = trace.reading(None).rows(f"SELECT event FROM stored.{table} ORDER BY event")
    return [row["event"] for row in rows[:: max(len(rows) // count, 1)]]


def as_text(value: Any) -> Any:
    """Numbers that a script cannot hold, as texts."""
    if isinstance(value, list):
        return [as_text(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 53 else value


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("table", TABLES)
def test_an_event_says_what_the_profile_says(name: str, table: str) -> None:
    trace = opened(name)
    for event in some(trace, table, 8):
        told, raw = event_details(trace, event), profile(name)[event]
        assert (told["event"], told["table"], told["name"]) == (event, table, raw["name"])
        assert told["args"] == {key: as_text(value) for key, value in raw.get("args", {}).items()}
        if "dur" in raw:
            assert told["dur_ns"] == pytest.approx(raw["dur"] * 1000, abs=1)


def hosts(trace: Trace) -> list[dict[str, Any]]:
    """All that nests on threads of the host, with self times as the native sweep finds them."""
    return trace.reading(None).rows(
        "SELECT event, thread, start_ns, dur_ns, stored_in, self_ns FROM stored.host_tree ORDER BY event"
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_self_time_and_stack_are_those_of_the_nested_thread(name: str) -> None:
    trace = opened(name)
    every = hosts(trace)
    for row in every[:: max(len(every) // 25, 1)]:
        told = event_details(trace, row["event"])
        assert told["self_ns"] == row["self_ns"]
        end = row["start_ns"] + row["dur_ns"]
        around = {
            one["event"]
            for one in every
            if one["thread"] == row["thread"]
            and one["stored_in"] == "python_frames"
            and one["start_ns"] <= row["start_ns"]
            and one["start_ns"] + one["dur_ns"] >= end
            and (one["dur_ns"] > row["dur_ns"] or one["event"] < row["event"])
            and one["event"] != row["event"]
        }
        own = {one["event"] for one in told["stack"]} if told["stack_of"] == "event" else set()
        assert own == around
        assert [one["start_ns"] for one in told["stack"]] == sorted(
            (one["start_ns"] for one in told["stack"]), reverse=True
        )


@pytest.mark.parametrize("name", SAMPLES)
def test_kernels_are_those_that_were_launched_inside(name: str) -> None:
    trace = opened(name)
    asked = trace.reading(None)
    launches = {
        row["event"]: row for row in asked.rows("SELECT event, thread, start_ns FROM stored.launches")
    }
    work = asked.rows(
        "SELECT event, launch, dur_ns, start_ns FROM stored.device_work WHERE launch IS NOT NULL"
    )
    for table in ("ops", "launches", "annotations"):
        for event in some(trace, table, 6):
            told = event_details(trace, event)
            if told["category"] == "gpu_user_annotation":
                continue
            start, end = told["start_ns"], told["start_ns"] + max(told["dur_ns"], 1)
            mine = [
                one
                for one in work
                if (call := launches[one["launch"]])["thread"] == told["track"]
                and (call["event"] == event if table == "launches" else start <= call["start_ns"] < end)
            ]
            kernels = told["links"]["kernels"]
            assert (kernels["count"], kernels["total_ns"]) == (len(mine), sum(one["dur_ns"] for one in mine))
            assert {one["event"] for one in kernels["first"]} <= {one["event"] for one in mine}
            assert len(kernels["first"]) == min(len(mine), 50)


@pytest.mark.parametrize("name", SAMPLES)
def test_links_of_work_lead_to_its_launch_and_operator(name: str) -> None:
    trace = opened(name)
    rows = trace.reading(None).rows(
        "SELECT event, launch, op, start_ns FROM stored.device_work ORDER BY event"
    )
    for row in rows[:: max(len(rows) // 10, 1)]:
        told = event_details(trace, row["event"])
        links = told["links"]
        assert (links["launch"] or {}).get("event") == row["launch"]
        assert (links["op"] or {}).get("event") == row["op"]
        if row["launch"] is not None:
            assert told["queue_ns"] == row["start_ns"] - links["launch"]["start_ns"]
            back = event_details(trace, row["launch"])["links"]["kernels"]
            assert back["count"] > 50 or row["event"] in [one["event"] for one in back["first"]]


def test_forward_and_backward_lead_to_each_other() -> None:
    trace = opened("h200_slow_item")
    rows = trace.reading(None).rows(
        "SELECT event, forward FROM stored.call_sites WHERE forward IS NOT NULL ORDER BY event"
    )
    ops = {row["event"] for row in trace.reading(None).rows("SELECT event FROM stored.ops")}
    pairs = [row for row in rows if row["event"] in ops]
    assert pairs
    for row in pairs[:: len(pairs) // 10]:
        assert event_details(trace, row["event"])["links"]["forward"]["event"] == row["forward"]
        backward = event_details(trace, row["forward"])["links"]["backward"]
        assert backward["count"] == sum(one["forward"] == row["forward"] for one in rows)
        assert row["event"] in [one["event"] for one in backward["first"]]


@pytest.mark.parametrize("table", ["ops", "device_work", "python_frames"])
def test_others_of_the_same_name_are_counted(table: str) -> None:
    trace = opened("h200_slow_item")
    rows = trace.reading(None).rows(
        f"SELECT event, name, start_ns, dur_ns FROM stored.{table} ORDER BY start_ns, event"
    )
    for row in rows[:: len(rows) // 6]:
        alike = event_details(trace, row["event"])["alike"]
        same = [one for one in rows if one["name"] == row["name"]]
        longer = sum(one["dur_ns"] > row["dur_ns"] for one in same)
        place = same.index(row)
        assert (alike["calls"], alike["total_ns"]) == (len(same), sum(one["dur_ns"] for one in same))
        assert alike["faster_than_share"] == (longer / (len(same) - 1) if len(same) > 1 else None)
        assert (alike["first"]["event"], alike["last"]["event"]) == (same[0]["event"], same[-1]["event"])
        assert (alike["previous"] or {}).get("event") == (same[place - 1]["event"] if place else None)
        assert alike["longest"]["dur_ns"] == max(one["dur_ns"] for one in same)


def test_a_kernel_has_its_module_line_and_limit() -> None:
    trace = opened("h200_slow_item")
    kernel = trace.reading(None).rows(
        """SELECT w.event FROM stored.device_work w JOIN stored.names n ON n.id = w.name
           WHERE n.text LIKE '%gemm%' ORDER BY w.event LIMIT 1"""
    )[0]["event"]
    told = event_details(trace, kernel)
    assert told["roofline"]["family"] == "matmul"
    assert told["roofline"]["bound"] in ("compute", "memory", "latency")
    assert told["user_frame"]["file"] == "capture.py"
    assert told["step"] is not None
    assert told["phase"] in ("forward", "backward")


@pytest.mark.parametrize("event", [-1, 10**9, 2**62])
def test_an_unknown_number_is_refused(event: int) -> None:
    with pytest.raises(StepscopeError, match="there is no event"):
        event_details(opened("h200_cuda_graph"), event)


def test_the_index_knows_every_event() -> None:
    trace = opened("h200_cuda_graph")
    places = places_of(trace)
    for table in (*HOST_TABLES, "device_work", "flows"):
        for row in trace.reading(None).rows(f"SELECT event, thread, start_ns FROM stored.{table}"):
            place = places.of(row["event"])
            assert (place.table, place.thread, place.start_ns) == (table, row["thread"], row["start_ns"])
