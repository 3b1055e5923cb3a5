from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.analyses.growing_joins import GrowingJoins

EVENTS_OF_STEP = 1_000_000


def recorded(folder: Path, *durs_of_steps: list[int], op: str = "aten::cat") -> list[GrowingJoins]:
    """The table of a trace whose steps call one operator, with device work of so many µs each."""
    events: list[dict[str, Any]] = []
    for step, durs in enumerate(durs_of_steps):
        at = 1_000.0 + step * EVENTS_OF_STEP
        common = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**common, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at - 10,
                       "dur": EVENTS_OF_STEP - 100})  # fmt: skip
        for number, dur in enumerate(durs):
            start, link = at + number * 5_000, step * 1_000 + number + 1
            events += [
                {**common, "cat": "cpu_op", "name": op, "ts": start, "dur": 20,
                 "args": {"External id": link}},
                {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 5,
                 "args": {"correlation": link, "External id": link}},
                {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "CatArrayBatchedCopy",
                 "ts": start + 12, "dur": dur,
                 "args": {"correlation": link, "External id": link, "device": 0, "stream": 7}},
            ]  # fmt: skip
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return list(stepscope.open(path).table("growing_joins"))


def test_a_tensor_that_grows_is_told_from_joins_of_others_between(tmp_path: Path) -> None:
    steps = [[30, 100, 30, 200, 31, 300, 30, 400]] * 2
    rows = recorded(tmp_path, *steps)
    assert [(row.step, row.joins, row.device_ns, row.last_ns) for row in rows] == [
        (0, 5, 1_030_000, 400_000),
        (1, 5, 1_030_000, 400_000),
    ]


@pytest.mark.parametrize(
    "durs",
    [
        [100, 101, 99, 102, 100, 101],  # alike
        [400, 300, 200, 100],  # gets smaller
        [100, 200, 300],  # too few
        [5, 10, 15, 19],  # small
        [100, 110, 120, 130],  # hardly grows
    ],
)
def test_other_joins_are_not_listed(durs: list[int], tmp_path: Path) -> None:
    assert not recorded(tmp_path, durs, durs)


def test_other_operators_are_not_listed(tmp_path: Path) -> None:
    assert not recorded(tmp_path, [100, 200, 300, 400], [100, 200, 300, 400], op="aten::add")
