"""One training program on an H200, recorded in seven ways; `tests/data/together` says how.

What each file says by itself is counted here by other means, and what they say together is looked at.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.data.make_snapshot import Plain

import stepscope
from stepscope.findings import Finding
from stepscope.store.trace import Trace

pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[1] / "data" / "together"
TRACE = FILES / "trace.json.gz"
ALSO = [
    FILES / name
    for name in (
        "snapshot.pickle.gz",
        "memory.json.gz",
        "torch_trace.log.gz",
        "execution_trace.json.gz",
        "ncu_raw.csv.gz",
        "proton.hatchet.gz",
    )
]


@pytest.fixture(scope="module")
def trace() -> Trace:
    """All of them in one store."""
    return stepscope.open(TRACE, also=ALSO)


def rows(trace: Trace, name: str) -> list[dict[str, Any]]:
    return trace.table(name).records()


def text(name: str) -> str:
    return gzip.decompress((FILES / name).read_bytes()).decode()


def events() -> list[dict[str, Any]]:
    return list(json.loads(text("trace.json.gz"))["traceEvents"])


def kernels() -> dict[str, tuple[int, int]]:
    """Calls and time of each kernel of the trace, in ns."""
    found: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for event in events():
        if event.get("cat") == "kernel":
            calls, ns = found[event["name"]]
            found[event["name"]] = (calls + 1, ns + round(event["dur"] * 1000))
    return found


def test_how_they_were_joined() -> None:
    report = stepscope.report([TRACE, *ALSO])
    ways = [re.sub(r".*\((.*)\)", r"\1", one) for one in report.facts.joined]
    assert sorted(ways) == [
        "compile log, by region and name",
        "execution trace, by the order of operators",
        "memory timeline, by time",
        "ncu, by kernel and launch shape",
        "proton, by kernel name",
        "snapshot, by time",
    ]


def test_the_memory_that_is_in_use(trace: Trace) -> None:
    with gzip.open(FILES / "snapshot.pickle.gz") as file:
        snapshot = Plain(file).load()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    used = [block for block in blocks if block["state"] == "active_allocated"]
    (device,) = rows(trace, "allocators")
    assert device["allocated_bytes"] == sum(block["size"] for block in used)
    assert device["live_blocks"] == len(used)
    assert device["reserved_bytes"] == sum(segment["total_size"] for segment in snapshot["segments"])
    assert device["events"] == sum(len(one) for one in snapshot["device_traces"])


def test_the_history_lies_in_the_time_of_the_trace(trace: Trace) -> None:
    (history,) = trace.rows("SELECT min(start_ns) AS first, max(start_ns) AS last FROM allocator_events")
    last = max(rows(trace, "steps"), key=lambda row: row["start_ns"])
    assert history["first"] <= min(row["start_ns"] for row in rows(trace, "steps"))
    assert last["start_ns"] + 0.9 * last["dur_ns"] < history["last"] < last["start_ns"] + last["dur_ns"]


def test_the_line_that_breaks_the_graph(trace: Trace) -> None:
    (line,) = rows(trace, "graph_break_lines")
    program = map(str.strip, (FILES / "train.py").read_text(encoding="utf-8").splitlines())
    assert line["place"].endswith("/train.py(73): forward")
    assert line["code"] in program
    assert line["code"].endswith("# breaks the graph")
    assert "Tensor.item()" in line["reason"]


def test_generated_kernels_and_what_they_cost(trace: Trace) -> None:
    told = {row["name"]: row for row in rows(trace, "generated_kernels")}
    ran = {name: found for name, found in kernels().items() if name.startswith("triton_")}
    assert ran
    assert {name: (told[name]["calls"], told[name]["device_ns"]) for name in ran} == ran
    assert all(told[name]["ops"] for name in ran)


def test_measured_kernels_are_those_of_the_trace(trace: Trace) -> None:
    lines = list(csv.DictReader(text("ncu_raw.csv.gz").splitlines()))[1:]  # the first has units
    measured = rows(trace, "measured_kernels")
    names = Counter(line["Kernel Name"] for line in lines)
    launches: Counter[str] = Counter()
    for row in measured:
        launches[row["kernel"]] += row["launches"]
    assert launches == names
    launched = Counter(
        (event["name"], tuple(event["args"]["grid"]), tuple(event["args"]["block"]))
        for event in events()
        if event.get("cat") == "kernel"
    )
    by_name = [row for row in measured if row["joined_by"] == "name"]
    assert by_name
    for row in by_name:
        shape = (tuple(json.loads(row["grid"])), tuple(json.loads(row["block"])))
        assert row["trace_calls"] == launched[(row["trace_kernel"], *shape)]
    # Full names have the types of their templates, in which the launches of one function differ.
    unnamed = [row for row in measured if row["joined_by"] == "ambiguous"]
    assert {row["kernel"].partition("<")[0] for row in unnamed} == {"void at::"}


def test_operators_get_the_shapes_of_the_execution_trace(trace: Trace) -> None:
    nodes = [
        node for node in json.loads(text("execution_trace.json.gz"))["nodes"] if node["name"] == "aten::mm"
    ]
    told = [row for row in rows(trace, "op_inputs") if row["name"] == "aten::mm"]
    assert sum(row["nodes"] for row in told) == len(nodes)
    assert sum(row["joined"] for row in told) == len(nodes)


def test_what_only_the_log_knows_has_no_known_gain() -> None:
    finding = found([TRACE, FILES / "torch_trace.log.gz"], "graph-breaks")
    assert finding is not None
    assert not finding.gain.is_known
    assert not finding.shares_time_with
    assert found([TRACE], "graph-breaks") is None


def found(words: list[Path], name: str) -> Finding | None:
    return next((one for one in stepscope.report(words).findings if one.id == name), None)


def test_of_two_logs_of_one_process_one_is_read() -> None:
    from stepscope.runs.finding import find_run

    run = find_run(
        [str(FILES / name) for name in ("trace.json.gz", "torch_logs.txt.gz", "torch_trace.log.gz")]
    )
    assert [Path(word).name for word in run.ranks[0].beside] == ["torch_trace.log.gz"]
    assert run.notes == (
        "torch_logs.txt.gz is left out: one file of its kind can be read, which is torch_trace.log.gz.",
    )
