from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import stepscope
from stepscope.analyses.cpu_pauses import CpuPause


def recorded(
    folder: Path,
    *ops: tuple[str, float, float],
    around: str | None = None,
    first: float = 100,
    copied_bytes: int = 0,
) -> list[CpuPause]:
    """The table of a step with kernels at 0.1 (or `first`) and at 10.1 ms, and such operators between.

    With `copied_bytes` so much is copied at 6 ms from pageable memory.
    """
    common = {"ph": "X", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {**common, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 12_000}
    ]
    if around:
        events.append({**common, "cat": "user_annotation", "name": around, "ts": 500, "dur": 9_000})
    for link, ts in ((1, first), (2, 10_100), *(((3, 6_000),) if copied_bytes else ())):
        copies = link == 3
        told = {"correlation": link, "External id": link}
        events += [
            {**common, "cat": "cpu_op", "name": "aten::add", "ts": ts - 10, "dur": 20,
             "args": {"External id": link}},
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts - 5, "dur": 5,
             "args": told},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "gpu_memcpy" if copies else "kernel",
             "name": "Memcpy HtoD (Pageable -> Device)" if copies else "add", "ts": ts, "dur": 100,
             "args": {**told, "device": 0, "stream": 7, **({"bytes": copied_bytes} if copies else {})}},
        ]  # fmt: skip
    for number, (name, start, dur) in enumerate(ops):
        events.append({**common, "cat": "cpu_op", "name": name, "ts": start, "dur": dur,
                       "args": {"External id": 100 + number}})  # fmt: skip
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return list(stepscope.open(path).table("cpu_pauses"))


def test_a_pause_that_is_mostly_computing_counts_as_a_whole(tmp_path: Path) -> None:
    (row,) = recorded(
        tmp_path, ("aten::stft", 1_000, 3_000), ("aten::abs", 5_000, 1_000), ("aten::view", 7_000, 5)
    )
    assert (row.device, row.pauses, row.computing_ns) == ("0", 1, 4_000_000)
    assert 9_800_000 <= row.idle_ns == row.longest_ns <= 9_900_000


def test_pauses_with_little_computing_and_those_of_the_loader_do_not_count(tmp_path: Path) -> None:
    assert not recorded(tmp_path, ("aten::stft", 1_000, 2_000))
    assert not recorded(tmp_path, *(("aten::view", 1_000 + 40 * number, 30) for number in range(200)))
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert not recorded(tmp_path, ("aten::stft", 1_000, 6_000), around=loader)


def test_an_operator_of_many_short_ones_does_not_compute(tmp_path: Path) -> None:
    views = [("aten::narrow", 1_000 + 45 * number, 40) for number in range(150)]
    assert not recorded(tmp_path, ("aten::unflatten_dense_tensors", 990, 6_770), *views)
    table = stepscope.open(tmp_path / "trace.json").table("step_ops")
    # What it takes itself is for calling them.
    assert {row.name: row.computing_ns for row in table if row.computing_ns} == {
        "aten::unflatten_dense_tensors": 770_000
    }


def test_what_computes_counts_in_the_operators_around_it(tmp_path: Path) -> None:
    assert recorded(tmp_path, ("aten::stft", 1_000, 5_000), ("aten::fft", 1_020, 4_960))
    table = stepscope.open(tmp_path / "trace.json").table("step_ops")
    found = {row.name: row.computing_ns for row in table}
    assert (found["aten::stft"], found["aten::fft"], found["aten::add"]) == (4_960_000, 4_960_000, 0)


def test_the_pause_before_the_first_work_begins_with_the_first_step(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, ("aten::stft", 500, 3_000), first=5_000)
    assert (row.pauses, row.computing_ns) == (1, 3_000_000)
    assert row.idle_ns == 4_995_000


def test_a_pause_after_a_large_copy_from_pageable_memory_gives_that_memory_back(tmp_path: Path) -> None:
    (row,) = recorded(tmp_path, ("aten::stft", 1_000, 3_000), copied_bytes=64 << 20)
    assert (row.pauses, row.computing_ns) == (1, 3_000_000)
    assert row.freeing_ns == 10_095_000 - 6_100_000
    (small,) = recorded(tmp_path, ("aten::stft", 1_000, 3_000), copied_bytes=1 << 20)
    assert small.freeing_ns == 0
    (computing,) = recorded(
        tmp_path, ("aten::stft", 1_000, 3_000), ("aten::abs", 7_000, 2_000), copied_bytes=64 << 20
    )
    assert (computing.pauses, computing.freeing_ns) == (2, 0)
