"""Memory timelines of torch.profiler: both forms, cut short, and of somebody else."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.timeline_kinds import timeline_kinds
from stepscope.errors import StepscopeError

START = 1_700_000_000_000_000_000
RAW = [
    [-1, 1, 1000, 0],
    [-1, 1, 2000, 1],
    [START + 10, 2, 500, 7],
    [START + 20, 3, -500, 7],
    [START + 20, 3, 500, 4],
    [START + 30, 2, 300, 5],
    [START + 40, 4, -500, 4],
]


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def kinds(path: Path) -> dict[str, tuple[int, int, int, int]]:
    return {
        row.category: (row.at_peak_bytes, row.peak_bytes, row.before_bytes, row.last_bytes)
        for row in timeline_kinds(stepscope.open(path))
    }


def test_the_raw_form(tmp_path: Path) -> None:
    assert kinds(written(tmp_path / "x", RAW)) == {
        "activations": (500, 500, 0, 0),
        "gradients": (300, 300, 0, 300),
        "optimizer state": (2000, 2000, 2000, 2000),
        "parameters": (1000, 1000, 1000, 1000),
        "unknown": (0, 500, 0, 0),
    }


def test_the_coalesced_form(tmp_path: Path) -> None:
    times = [START // 1000 + n for n in range(3)]
    sizes = [[0, 10, 0, 0, 0, 0, 0, 0, 5], [0, 10, 0, 0, 0, 20, 0, 0, 0], [0, 10, 0, 0, 0, 0, 3, 0, 0]]
    assert kinds(written(tmp_path / "x.json", [times, sizes])) == {
        "activations": (20, 20, 0, 0),
        "gradients": (0, 3, 0, 3),
        "parameters": (10, 10, 0, 10),
        "unknown": (0, 5, 0, 0),
    }


def test_one_instant(tmp_path: Path) -> None:
    assert kinds(written(tmp_path / "x", [[5], [[0, 7, 0, 0, 0, 0, 0, 0, 0]]])) == {
        "parameters": (7, 7, 0, 7)
    }


def test_packed_and_beside_a_trace(tmp_path: Path) -> None:
    trace = Drawing(base_ns=START).mark(1, 0, 100).op("aten::mm", 10, 20).write(tmp_path / "trace.json")
    path = tmp_path / "x.raw.json.gz"
    path.write_bytes(gzip.compress(json.dumps(RAW).encode()))
    found = stepscope.open(trace, also=[path]).arrow("SELECT min(start_ns) AS low FROM memory_timeline")
    assert found.to_pylist() == [{"low": START + 10}]


def test_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    text = json.dumps(RAW)
    path.write_text(text[: len(text) - 8])
    trace = stepscope.open(path)
    assert "ends too early" in trace.meta.damage[0].reason
    assert trace.arrow("SELECT count(*) AS n FROM memory_timeline").to_pylist() == [{"n": 6}]
    sizes = [[0, 10, 0, 0, 0, 0, 0, 0, 5]] * 50
    text = json.dumps([list(range(1, 51)), sizes])
    path.write_text(text[: len(text) // 2])
    trace = stepscope.open(path)
    assert "have no sizes" in trace.meta.damage[0].reason


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    trace = stepscope.open(written(tmp_path / "x", [*RAW, [START, 9, 5, 5], [START, 2, 5, 77]]))
    assert [(one.reason, one.count) for one in trace.meta.damage] == [
        ("a row of the memory timeline that is none, not kept", 2)
    ]


def test_a_page_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text("<html><head><meta charset='utf-8' /><title>Cuda Memory Timeline</title></head><body>"
                    "<img src='data:image/png;base64,AAAA'></body></html>")  # fmt: skip
    with pytest.raises(StepscopeError, match="page with a picture") as refused:
        stepscope.open(path)
    assert "raw.json.gz" in (refused.value.hint or "")


@pytest.mark.parametrize("text", ["[]", "[[]]", "[1, 2]", '[{"ph": "X"}]', '[["a"]]'])
def test_other_lists_are_not_taken(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    try:
        kind = stepscope.open(path).meta.kind
    except StepscopeError as error:
        assert "not a trace" in str(error)  # noqa: PT017
    else:
        assert kind == "kineto"


def test_the_real_one(sample: Callable[[str], Path]) -> None:
    path = sample("h200_mem_timeline.raw.json.gz")
    with gzip.open(path) as file:
        rows = json.load(file)
    level: Counter[int] = Counter()
    instants: dict[int, Counter[int]] = {}
    for at, _, size, kind in rows:
        level[kind] += size
        instants[at] = level.copy()
    most = max(instants.values(), key=lambda one: sum(one.values()))
    found = kinds(path)
    assert sum(at_peak for at_peak, *_ in found.values()) == sum(most.values()) == 1_228_467_712
    assert found["activations"][0] == most[4]
    assert found["parameters"] == (75_657_216,) * 4
