"""The tree of host events: right, made once, and made elsewhere where the store may not be written."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.commands import PATIENCE_S, SLOW_ITEM, STEPSCOPE, environment, obey_permissions, stepscope
from tests.drawing import Drawing
from tests.oracle import Event, Oracle, by_thread, is_host
from tests.spans import size, union

from stepscope.opening import open_trace
from stepscope.store.trace import Trace

REAL = ["hta_nccl_data.json.gz", "tl_h100_gaunernst_bert-small-uncased.json.gz", "hta_cpu_only.json.gz"]
COUNT = "SELECT count(*) AS n FROM host_tree"


def tree(trace: Trace) -> dict[int, dict[str, Any]]:
    return {row["event"]: row for row in trace.arrow("SELECT * FROM host_tree").to_pylist()}


def frames_of(oracle: Oracle) -> dict[int, int | None]:
    """For every host event the frame of its thread that was open when it began and started last."""
    found: dict[int, int | None] = {}
    for events in by_thread(event for event in oracle.events if is_host(event)).values():
        opened: list[Event] = []
        for event in sorted(events, key=lambda one: one.order):
            opened = [frame for frame in opened if frame.end > event.start]
            found[event.index] = opened[-1].index if opened else None
            if event.category == "python_function":
                opened.append(event)
    return found


def check(path: Path, store: Path) -> None:
    oracle, found = Oracle.of(path), tree(open_trace(path, store=store))
    host = [event for event in oracle.events if is_host(event)]
    assert found.keys() == {event.index for event in host}
    for event in host:
        row = found[event.index]
        parent = event.host_parent.index if event.host_parent else None
        expected = (event.name, event.start, event.dur, parent, event.host_depth, event.host_self)
        assert (
            tuple(row[key] for key in ("name", "start_ns", "dur_ns", "parent", "depth", "self_ns"))
            == expected
        )
        assert (row["pid"], row["tid"]) == (str(event.thread[0]), str(event.thread[1]))
    assert {event: row["frame"] for event, row in found.items()} == frames_of(oracle)
    self_ns: dict[tuple[str, str], int] = defaultdict(int)
    for row in found.values():
        self_ns[row["pid"], row["tid"]] += row["self_ns"]
    for (pid, tid), events in by_thread(host).items():
        assert self_ns[str(pid), str(tid)] == size(union(event.span for event in events))


def crossing(seed: int) -> Drawing:
    """Events of all host kinds on three threads, with many ties, that cross as they like."""
    chance = random.Random(seed)
    drawing = Drawing(base_ns=10**18)
    for _ in range(300):
        at = Decimal(chance.randrange(200)) / 1000, Decimal(chance.randrange(40)) / 1000
        thread = chance.choice([1, 2, "worker"])
        kind = chance.choice([drawing.op, drawing.launch, drawing.frame, drawing.annotation])
        kind(chance.choice("abc"), *at, thread=thread)
        if chance.random() < 0.1:
            drawing.annotation(
                "other", *at, thread=thread, cat=chance.choice(["Trace", "cuda_sync", "overhead"])
            )
    return drawing


@pytest.mark.parametrize("seed", range(6))
def test_drawn_profiles_whose_events_cross(seed: int, tmp_path: Path) -> None:
    check(crossing(seed).write(tmp_path / "a.json"), tmp_path)


def test_a_committed_sample(tmp_path: Path) -> None:
    check(SLOW_ITEM, tmp_path)


@pytest.mark.parametrize("name", REAL)
def test_a_real_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    check(sample(name), tmp_path)


def test_the_innermost_frame(tmp_path: Path) -> None:
    drawing = (
        Drawing()
        .frame("main", 0, 100)
        .annotation("forward", 1, 90)
        .frame("layer", 2, 50)
        .op("aten::mm", 3, 20)
        .launch("cudaLaunchKernel", 4, 1)
        .op("aten::add", 60, 5)
        .frame("other", 70, 5)
        .op("outside", 200, 5)
        .op("elsewhere", 3, 5, thread=2)
    )
    path = drawing.write(tmp_path / "a.json")
    found = tree(open_trace(path, store=tmp_path))
    assert [found[event]["frame"] for event in range(9)] == [None, 0, 0, 2, 2, 0, 0, None, None]


def test_it_is_made_once_and_only_when_asked_for(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    trace.arrow("SELECT count(*) FROM ops")
    made = trace.folder / "host_tree.parquet"
    assert not made.exists()
    trace.arrow(COUNT)
    status = made.stat()
    for again in (trace, open_trace(SLOW_ITEM, store=tmp_path), trace.reading({"host_tree": ("event",)})):
        again.arrow(COUNT)
        assert made.stat().st_mtime_ns == status.st_mtime_ns
        assert made.stat().st_ino == status.st_ino


def test_what_a_killed_run_left_is_written_over(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    (trace.folder / ".host_tree.partial").write_bytes(b"half")
    trace.arrow(COUNT)
    assert not [file.name for file in trace.folder.iterdir() if file.name.endswith(".partial")]


def test_an_empty_one(tmp_path: Path) -> None:
    trace = open_trace(Drawing().kernel("k", 0, 1).write(tmp_path / "a.json"), store=tmp_path)
    assert trace.arrow(COUNT)["n"].to_pylist() == [0]


def test_beside_a_store_that_may_not_be_written(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    trace.folder.chmod(0o555)
    child = subprocess.run(
        [*STEPSCOPE, "query", str(trace.folder), COUNT, "--format", "json"],
        env=environment(tmp_path, TMPDIR=str(temporary)),
        preexec_fn=obey_permissions,
        capture_output=True,
        check=False,
    )
    trace.folder.chmod(0o755)
    assert child.returncode == 0, child.stderr
    assert not (trace.folder / "host_tree.parquet").exists()
    assert not list(temporary.iterdir())
    assert json.loads(child.stdout) == trace.arrow(COUNT).to_pylist()


def test_no_place_at_all(tmp_path: Path) -> None:
    trace = open_trace(SLOW_ITEM, store=tmp_path)
    trace.folder.chmod(0o555)
    code = (
        "import sys, tempfile; tempfile.tempdir = '/nowhere';"
        " from stepscope.cli.main import main; sys.exit(main())"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, "query", str(trace.folder), COUNT],
        preexec_fn=obey_permissions,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    trace.folder.chmod(0o755)
    assert child.returncode == 1
    assert "no place for the table host_tree" in child.stderr
    assert "TMPDIR" in child.stderr
    assert "Traceback" not in child.stderr


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    folder = open_trace(SLOW_ITEM, store=tmp_path).folder
    command = [*STEPSCOPE, "query", str(folder), COUNT, "--format", "json"]
    both = [subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE) for _ in range(2)]
    answers = [json.loads(child.communicate(timeout=PATIENCE_S)[0]) for child in both]
    assert answers[0] == answers[1]
    found = sorted(file.name for file in folder.iterdir() if "host_tree" in file.name)
    assert found == ["host_tree.parquet", "host_tree.sums.txt"]
    assert stepscope("query", folder, COUNT, cache=tmp_path).returncode == 0
