"""The benchmark's traces look like Kineto's and are consistent in themselves."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.samples import KEPT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the generator needs a C++ compiler"),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "traces.py"
HOST = {"python_function", "cpu_op", "cuda_runtime", "cuda_driver"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
Event = dict[str, Any]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The compiled generator stays here for other tests."""
    return KEPT / "bench"


def generate(folder: Path, *options: str) -> Path:
    environment = os.environ | {"STEPSCOPE_BENCH_DIR": str(folder)}
    command = [sys.executable, str(SCRIPT), *options]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return Path(printed.strip())


@pytest.fixture(scope="module")
def trace(folder: Path) -> Path:
    return generate(folder, "2MB")


@pytest.fixture(scope="module")
def events(trace: Path) -> list[Event]:
    found: list[Event] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return found


def ns(us: float) -> int:
    return round(us * 1000)


def test_size_and_compression(trace: Path, events: list[Event]) -> None:
    raw_bytes = len(gzip.decompress(trace.read_bytes()))
    assert raw_bytes == pytest.approx(2_000_000, rel=0.15)
    assert 255 < raw_bytes / len(events) < 310
    assert 9 < raw_bytes / trace.stat().st_size < 17


def test_mix(trace: Path, events: list[Event]) -> None:
    counts = Counter(f"{event.get('cat', '')} {event['ph']}".strip() for event in events)
    assert counts == json.loads(Path(f"{trace}.summary").read_text())["events"]
    complete = sum(count for kind, count in counts.items() if kind.endswith("X"))
    share = {kind: count / complete for kind, count in counts.items()}
    assert 0.86 < share["python_function X"] < 0.92
    assert 0.045 < share["cpu_op X"] < 0.065
    assert 0.014 < share["kernel X"] < 0.025
    assert 0.02 < share["cuda_runtime X"] < 0.035


def test_host_events_nest_on_every_thread(events: list[Event]) -> None:
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] in HOST:
            threads[event["tid"]].append((ns(event["ts"]), -ns(event["dur"])))
    assert len(threads) == 5
    for spans in threads.values():
        open_ends: list[int] = []
        for start, negative_dur in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or start - negative_dur <= open_ends[-1]
            open_ends.append(start - negative_dur)


def test_device_work_follows_its_launch(events: list[Event]) -> None:
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in {"cuda_runtime", "cuda_driver"}
    }
    work = [event for event in events if event.get("cat") in DEVICE]
    assert all(launches[event["args"]["correlation"]]["ts"] < event["ts"] for event in work)
    ordered = sorted((ns(event["ts"]), ns(event["dur"])) for event in work)
    assert all(start + dur <= after for (start, dur), (after, _) in pairwise(ordered))


def test_frames_name_their_parents(events: list[Event]) -> None:
    frames = [event for event in events if event.get("cat") == "python_function"]
    assert [frame["args"]["Python id"] for frame in frames] == list(range(1, len(frames) + 1))
    for frame in frames:
        parent = frame["args"]["Python parent id"]
        if parent is not None:
            assert frames[parent - 1]["tid"] == frame["tid"]
            assert ns(frames[parent - 1]["ts"]) <= ns(frame["ts"])


def test_event_indices_and_steps(events: list[Event]) -> None:
    indices = [event["args"]["Ev Idx"] for event in events if "Ev Idx" in event.get("args", {})]
    assert indices == list(range(len(indices)))
    marks = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert [name for name in marks if name.startswith("ProfilerStep#")][:2] == [
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]


def test_flows_come_in_pairs(events: list[Event]) -> None:
    flows = Counter((event["id"], event["ph"]) for event in events if event.get("cat") == "fwdbwd")
    assert flows
    assert all(flows[number, "s"] == flows[number, "f"] == 1 for number, _ in flows)


def test_same_recipe_gives_the_same_text(trace: Path, folder: Path) -> None:
    plain = generate(folder, "2MB", "--plain")
    assert plain.read_bytes() == gzip.decompress(trace.read_bytes())
    assert generate(folder, "2MB", "--plain", "--seed", "2").read_bytes() != plain.read_bytes()
