"""The documented views: every column is there, every event is there once, times and arguments are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands import DATA
from tests.drawing import Drawing
from tests.oracle import COMMUNICATION, KERNEL, Oracle, device_of, is_communication, nanoseconds, read

import stepscope
from stepscope import registry
from stepscope.schema import STORED
from stepscope.store.trace import Trace
from stepscope.store.views import VIEWS

SAMPLES = sorted(DATA.glob("*.json.gz"), key=lambda path: path.name)
SOME = [path for path in SAMPLES if path.name.startswith(("h200_slow", "h200_ddp_gloo_rank0", "h200_cuda"))]


@pytest.fixture(scope="module", params=SOME, ids=lambda path: path.name.partition(".")[0])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def trace(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return stepscope.open(path, store=tmp_path_factory.mktemp("views"))


def rows(trace: Trace, sql: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.arrow(sql, **params).to_pylist()
    return found


def test_every_documented_column_is_there(trace: Trace) -> None:
    for view in VIEWS:
        names = [name for name, _, _ in view.columns]
        assert trace.arrow(f"SELECT * FROM {view.name} LIMIT 5").column_names == names
        assert view.description.endswith(".")
        assert all(description.endswith(".") for _, _, description in view.columns), view.name


def test_every_event_is_there_once(trace: Trace) -> None:
    (found,) = rows(
        trace,
        "SELECT count(*) AS n, count(DISTINCT event) AS distinct_n, min(event) AS first, max(event) AS last"
        " FROM events",
    )
    events = trace.meta.events
    assert found == {"n": events, "distinct_n": events, "first": 0, "last": events - 1}
    assert sum(trace.meta.rows.values()) == events
    for table in STORED:
        assert rows(trace, f"SELECT count(*) AS n FROM {table.name}")[0]["n"] == trace.meta.rows[table.name]


def test_events_by_category_are_those_of_the_analysis(trace: Trace) -> None:
    counted = rows(
        trace,
        "SELECT category, phase, count(*) AS events,"
        " CASE WHEN phase = 'X' THEN coalesce(sum(dur_ns), 0)::BIGINT END AS total_ns FROM events"
        " GROUP BY category, phase",
    )
    analysed = registry.load("analyses", "categories")(trace).records()
    assert {tuple(row.values()) for row in counted} == {tuple(row.values()) for row in analysed}


def test_every_event_says_what_the_profile_says(trace: Trace, path: Path) -> None:
    metadata, events = read(path)
    base = int(metadata["baseTimeNanoseconds"])
    found = rows(trace, "SELECT * FROM events ORDER BY event")
    for row, raw in zip(found, events, strict=True):
        assert row["name"] == raw["name"]
        assert (row["category"], row["phase"]) == (raw.get("cat"), raw["ph"])
        assert (row["pid"], row["tid"]) == (str(raw["pid"]), str(raw["tid"]))
        assert row["start_ns"] == base + nanoseconds(raw["ts"])
        assert row["dur_ns"] == (nanoseconds(raw["dur"]) if "dur" in raw else None)
        assert (json.loads(row["args"]) if row["args"] else {}).keys() == raw.get("args", {}).keys()


def test_arguments_with_a_column(trace: Trace, path: Path) -> None:
    events = read(path)[1]
    for table in STORED:
        keyed = [column for column in table.columns if column.key and not column.top]
        for row in rows(trace, f"SELECT * FROM {table.name}"):
            args = events[row["event"]].get("args", {})
            for column in keyed:
                value = args.get(column.key)
                assert row[column.name] == (None if value is None else float(value)), column.name


def test_arguments_of_a_launch(trace: Trace, path: Path) -> None:
    events = read(path)[1]
    kernels = rows(trace, "SELECT *, (args->'$.grid')::INT[] AS sizes FROM kernels")
    assert kernels
    for row in kernels:
        args = events[row["event"]]["args"]
        assert row["sizes"] == args["grid"] == json.loads(row["grid"])
        assert json.loads(row["block"]) == args["block"]
        assert row["registers"] == args["registers per thread"]
        assert row["shared_bytes"] == args["shared memory"]
        assert row["blocks_per_sm"] == pytest.approx(float(args["blocks per SM"]))
        assert row["occupancy_percent"] == pytest.approx(float(args["est. achieved occupancy %"]))


def test_kinds_of_device_work(trace: Trace, path: Path) -> None:
    oracle = Oracle.of(path)
    found = {row["event"]: row for row in rows(trace, "SELECT * FROM device_work")}
    assert found.keys() == {work.index for work in oracle.work}
    for work in oracle.work:
        row = found[work.index]
        assert row["device_name"] == device_of(work)
        assert row["communicates"] == is_communication(work)
        assert (row["kind"] == "kernel") == (work.category in KERNEL)
    kernels = rows(trace, "SELECT event FROM kernels")
    assert {row["event"] for row in kernels} == {w.index for w in oracle.work if w.category in KERNEL}


def test_names_that_communicate(tmp_path: Path) -> None:
    names = [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "NCCL",
        "rccl_main",
        "void vllm::cross_device_reduce_1stage<half>",
        "multimem_all_reduce_kernel",
        "all-to-all",
        "alltoall",
        "all2all_kernel",
        "reduce_scatter",
        "deep_ep::dispatch",
        "nvshmem_put",
        "gemm",
        "reduce_kernel",
        "allocate",
        "gather",
        "scatter_all",
        "",
    ]
    drawing = Drawing()
    for number, name in enumerate(names):
        drawing.kernel(name, number, 1).memcpy(name, number, 1)
    trace = stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path)
    found = rows(trace, "SELECT name, kind, communicates FROM device_work")
    assert len(found) == 2 * len(names)
    for row in found:
        assert row["communicates"] == (row["kind"] == "kernel" and bool(COMMUNICATION.search(row["name"])))


def test_steps_are_marks_of_the_host(trace: Trace, path: Path) -> None:
    marks = [
        (int(event["name"][13:]), number)
        for number, event in enumerate(read(path)[1])
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]
    found = rows(trace, "SELECT step, event, name FROM step_marks ORDER BY event")
    assert [(row["step"], row["event"]) for row in found] == marks


def test_what_looks_like_a_mark_and_is_none(tmp_path: Path) -> None:
    drawing = (
        Drawing()
        .mark(12, 0, 5)
        .annotation("ProfilerStep#1", 0, 5, cat="gpu_user_annotation")
        .annotation("ProfilerStep#", 0, 5)
        .annotation("my ProfilerStep#2", 0, 5)
        .annotation("ProfilerStep#3 more", 0, 5)
    )
    trace = stepscope.open(drawing.write(tmp_path / "a.json"), store=tmp_path)
    assert [row["step"] for row in rows(trace, "SELECT step FROM steps")] == [12]


def test_what_the_profile_says_of_itself(trace: Trace, path: Path) -> None:
    found = {row["key"]: json.loads(row["value"]) for row in rows(trace, "FROM meta")}
    metadata = json.loads(json.dumps(read(path)[0], default=float))
    assert {key: found[key] for key in metadata} == metadata
    assert found["events"] == trace.meta.events


def test_a_base_time_before_or_after_the_events_is_the_same(tmp_path: Path) -> None:
    from tests.drawing import Layout

    base = 1_700_000_000_123_456_789
    for base_at in ("before", "after"):
        drawing = Drawing(base_ns=base).op("a", 1.5, 2).op("b", 0, 0)
        file = drawing.write(tmp_path / f"{base_at}.json", Layout(base=base_at))
        found = rows(stepscope.open(file, store=tmp_path), "SELECT start_ns FROM events ORDER BY event")
        assert [row["start_ns"] for row in found] == [base + 1500, base]
