"""The oracle against the expected files of real profiles, and against counting instant by instant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from tests.analyses.comparing import KEYS, differences, is_same, oracle_of
from tests.analyses.drawn import drawings
from tests.analyses.test_expected import expected_tables
from tests.drawing import LAYOUTS, LIST_LAYOUTS, Drawing
from tests.oracle import KERNEL, OP, RUNTIME, WORK, Event, Oracle, device_of, is_communication, is_host
from tests.samples import FEW, SAMPLES, tiered
from tests.trying import tries

BIG = {"h200_rl_churn.pt.trace.json.gz", "hta_ns_resolution.json.gz", "h200_resnet50.pt.trace.json.gz"}


@pytest.mark.slow
@pytest.mark.parametrize("name", tiered([name for name in SAMPLES if name not in BIG], FEW))
def test_the_oracle_has_the_expected_tables(name: str, sample: Callable[[str], Path]) -> None:
    path = sample(name)
    expected = expected_tables(path)
    tables = Oracle.of(path).tables()
    wrong = [line for table in KEYS for line in differences(table, tables[table], expected[table])]
    assert not wrong
    for table in ("steps", "devices"):
        for row, wanted in zip(tables[table], expected[table], strict=True):
            assert row.keys() == wanted.keys()
            assert all(is_same(row[column], wanted[column]) for column in wanted)
    assert tables["device_ns_outside_any_op"] == expected["device_ns_outside_any_op"]


def instants(events: Iterable[Event]) -> range:
    ends = [event.end for event in events]
    return range(max(ends, default=0))


def is_open(event: Event, instant: int) -> bool:
    return event.start <= instant < event.end


@settings(max_examples=tries(60, 1500), suppress_health_check=[HealthCheck.too_slow])
@given(drawings())
def test_self_times_are_those_of_counting_instants(drawing: Drawing) -> None:
    oracle = oracle_of(drawing)
    host = [event for event in oracle.events if is_host(event)]
    counted: dict[int, list[int]] = {event.index: [0, 0, 0] for event in host}
    for thread in {event.thread for event in host}:
        ours = [event for event in host if event.thread == thread]
        for instant in instants(ours):
            opened = [event for event in ours if is_open(event, instant)]
            if opened:
                counted[max(opened, key=lambda e: e.order).index][0] += 1
            ops = [event for event in opened if event.category in OP]
            if ops:
                inner = max(ops, key=lambda e: e.order).index
                counted[inner][1] += 1
                counted[inner][2] += not any(event.category in RUNTIME for event in opened)
    assert counted == {e.index: [e.host_self, e.op_self, e.op_self_no_runtime] for e in host}


@settings(max_examples=tries(60, 1500), suppress_health_check=[HealthCheck.too_slow])
@given(drawings())
def test_device_figures_are_those_of_counting_instants(drawing: Drawing) -> None:
    oracle = oracle_of(drawing)
    for row in oracle.devices():
        if row["window"] != "span":
            continue
        work = [w for w in oracle.events if w.category in WORK and device_of(w) == row["device"]]
        busy = compute = communication = both = 0
        for instant in instants(work):
            running = [w for w in work if is_open(w, instant)]
            computes = any(w.category in KERNEL and not is_communication(w) for w in running)
            communicates = any(is_communication(w) for w in running)
            busy += bool(running)
            compute += computes
            communication += communicates
            both += computes and communicates
        counted = (busy, compute, communication, communication - both, compute + communication - both)
        columns = ("busy_ns", "compute_ns", "communication_ns", "exposed_communication_ns", "kernel_ns")
        assert counted == tuple(row[column] for column in columns)


@settings(max_examples=tries(60, 1500), suppress_health_check=[HealthCheck.too_slow])
@given(drawings(marks=True))
def test_parts_of_a_step_sum_to_it(drawing: Drawing) -> None:
    steps = oracle_of(drawing).steps()
    end = 0
    for row in steps:
        parts = [value for column, value in row.items() if column.endswith("_ns")][2:]
        assert sum(parts) == row["dur_ns"]
        assert row["start_ns"] >= end
        end = row["start_ns"] + row["dur_ns"]


@settings(max_examples=tries(50))
@given(drawings())
def test_all_layouts_say_the_same(drawing: Drawing) -> None:
    tables = oracle_of(drawing).tables()
    for layout in LAYOUTS + LIST_LAYOUTS:
        assert oracle_of(drawing, layout).tables() == tables
    assert json.loads(drawing.json())["traceEvents"]
