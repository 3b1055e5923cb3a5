"""Call stacks for other tools: every nanosecond once, and names that cannot break a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.commands import SLOW_ITEM
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.call_paths import call_paths
from stepscope.cli.main import main
from stepscope.errors import StepscopeError
from stepscope.exports.collapsed import collapsed
from stepscope.exports.speedscope import speedscope
from stepscope.store.export import Export
from stepscope.store.trace import Trace


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    drawing = Drawing().op("aten::outer", 0, 100).op("aten::in;ner\n\x1b[0m", 10, 30)
    drawing.launch("cudaLaunchKernel", 20, 5, corr=1).kernel("gemm", 50, 40, corr=1)
    return stepscope.open(drawing.write(tmp_path / "trace.json"))


def text_of(write: Callable[[Trace, str], Export], trace: Trace) -> str:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "x.txt"
        assert write(trace, str(file)).bytes == file.stat().st_size
        return file.read_text(encoding="utf-8")


def test_lines(trace: Trace) -> None:
    lines = text_of(collapsed, trace).splitlines()
    found = [line.rpartition(" ") for line in lines]
    assert sorted((path.partition(";")[2], int(number)) for path, _, number in found) == [
        ("aten::outer", 70_000),
        (r"aten::outer;aten::in,ner\n\x1b[0m", 25_000),
        (r"aten::outer;aten::in,ner\n\x1b[0m;cudaLaunchKernel", 5_000),
    ]


def stacks(document: dict[str, Any], profile: dict[str, Any]) -> dict[tuple[str, ...], int]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    weighed = zip(profile["samples"], profile["weights"], strict=True)
    return {tuple(names[place] for place in stack): weight for stack, weight in weighed}


def test_speedscope(trace: Trace) -> None:
    document = json.loads(text_of(speedscope, trace))
    host, device = document["profiles"]
    assert host["name"].endswith("host time")
    assert device["name"].endswith("device work launched")
    inner = "aten::in;ner\n\x1b[0m"
    assert stacks(document, host) == {
        ("aten::outer",): 70_000,
        ("aten::outer", inner): 25_000,
        ("aten::outer", inner, "cudaLaunchKernel"): 5_000,
    }
    assert stacks(document, device) == {("aten::outer", inner, "cudaLaunchKernel"): 40_000}
    assert (host["unit"], host["endValue"]) == ("nanoseconds", 100_000)


def test_a_real_profile_is_whole() -> None:
    trace = stepscope.open(SLOW_ITEM)
    paths = list(call_paths(trace))
    document = json.loads(text_of(speedscope, trace))
    sums = {"host": 0, "device": 0}
    for profile in document["profiles"]:
        sums["host" if "host time" in profile["name"] else "device"] += sum(profile["weights"])
    threads = [path for path in paths if path.parent is None]
    assert sums["host"] == sum(path.self_ns for path in paths) == sum(path.total_ns for path in threads)
    assert sums["device"] == sum(path.device_ns for path in threads)
    lines = text_of(collapsed, trace).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sums["host"]


def test_without_a_host_there_is_nothing(tmp_path: Path) -> None:
    trace = stepscope.open(Drawing().kernel("gemm", 0, 40).write(tmp_path / "trace.json"))
    for export in (collapsed, speedscope):
        with pytest.raises(StepscopeError, match="no call stacks of the host"):
            text_of(export, trace)


def test_the_ending_chooses_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--demo", "-o", str(tmp_path / "a.speedscope.json")]) == 0
    assert json.loads((tmp_path / "a.speedscope.json").read_bytes())["exporter"] == "stepscope"
    assert main(["export", "--demo", "-o", str(tmp_path / "a.collapsed.txt")]) == 0
    assert "aten::" in (tmp_path / "a.collapsed.txt").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["export", "--demo", "-o", str(tmp_path / "a.xyz")]) == 2
    assert ".speedscope.json" in capsys.readouterr().err
