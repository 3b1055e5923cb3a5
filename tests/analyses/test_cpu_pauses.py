from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import stepscope
from stepscope.analyses.cpu_pauses import CpuPause


def recorded(folder: Path, *ops: tuple[str, float, float], around: str | None = None) -> list[CpuPause]:
    """The table of a step with kernels at 0.1 and at 10.1 ms, and such operators between."""
    common = {"ph": "X", "pid": 1, "tid": 1}
    events: list[dict[str, Any]] = [
        {**common, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 12_000}
    ]
    if around:
        events.append({**common, "cat": "user_annotation", "name": around, "ts": 500, "dur": 9_000})
    for link, ts in ((1, 100), (2, 10_100)):
        told = {"correlation": link, "External id": link}
        events += [
            {**common, "cat": "cpu_op", "name": "aten::add", "ts": ts - 10, "dur": 20,
             "args": {"External id": link}},
            {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts - 5, "dur": 5,
             "args": told},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "add", "ts": ts, "dur": 100,
             "args": {**told, "device": 0, "stream": 7}},
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
