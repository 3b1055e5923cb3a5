"""Profiles of Proton: a tree of scopes whose sums come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.analyses.proton_scopes import proton_scopes
from stepscope.errors import StepscopeError


def scope(name: Any, *inside: Any, **metrics: Any) -> dict[str, Any]:
    named = {key.replace("time", "time (ns)"): value for key, value in metrics.items()}
    return {"children": list(inside), "frame": {"name": name, "type": "function"}, "metrics": named}


def written(path: Path, *document: Any) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


TREE = scope(
    "ROOT",
    scope(
        "forward",
        scope("gemm", count=2, time=600, device_type="CUDA", device_id="0"),
        flops16=1.2e6,
        bytes=300,
    ),
    scope("relu", count=1, time=400, device_type="CUDA", device_id="0"),
)


def test_sums_and_rates(tmp_path: Path) -> None:
    trace = stepscope.open(written(tmp_path / "x.json", TREE, {"CUDA": {"0": {"arch": "90"}}}))
    rows = {row.path: row for row in proton_scopes(trace)}
    assert {path: row.total_ns for path, row in rows.items()} == {
        "ROOT": 1000, "ROOT/forward": 600, "ROOT/forward/gemm": 600, "ROOT/relu": 400,
    }  # fmt: skip
    assert rows["ROOT/forward"].self_ns is None
    assert rows["ROOT/forward"].tflop_s == pytest.approx(2.0)
    assert rows["ROOT/forward"].gb_s == pytest.approx(0.5)
    assert (rows["ROOT/relu"].calls, rows["ROOT/relu"].device, rows["ROOT/relu"].total_share) == (
        1,
        "CUDA 0",
        0.4,
    )
    assert trace.meta.metadata["proton_devices"] == {"CUDA": {"0": {"arch": "90"}}}


def test_beside_a_trace(tmp_path: Path) -> None:
    trace = stepscope.open(
        Drawing().kernel("gemm", 0, 40).kernel("gemm", 50, 5).write(tmp_path / "trace.json"),
        also=[written(tmp_path / "x.json", TREE)],
    )
    assert {row.path: row.trace_ns for row in proton_scopes(trace)}["ROOT/forward/gemm"] == 45_000
    assert trace.meta.sources[1].joined == "by kernel name"


def test_odd_scopes(tmp_path: Path) -> None:
    odd = scope(
        "ROOT", scope(7, time=5), None, 3, scope("a", time=-5), scope("b", time="x"), scope("c", time=1e300)
    )
    trace = stepscope.open(written(tmp_path / "x.json", odd))
    assert [row.path for row in proton_scopes(trace)] == ["ROOT", "ROOT/a", "ROOT/b", "ROOT/c"]
    assert {row.total_ns for row in proton_scopes(trace)} == {0}
    assert [one.count for one in trace.meta.damage] == [1]


@pytest.mark.parametrize("text", ['[{"children": [], "frame": {"name"', '[{"frame": {}, "children": []}]'])
def test_what_is_damaged_or_empty_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(StepscopeError, match=r"x\.json is"):
        stepscope.open(tmp_path / "x.json")


def test_a_deep_tree_is_refused(tmp_path: Path) -> None:
    text = '[{"children": [' * 100_000 + '{"frame": 1'
    (tmp_path / "x.json").write_text('[{"frame": {}, "children": [' + text, encoding="utf-8")
    with pytest.raises(StepscopeError, match="damaged"):
        stepscope.open(tmp_path / "x.json")


@pytest.mark.parametrize("name, total_ns", [("cuda", 614_400), ("leaf_nodes", None)])
def test_real_ones(name: str, total_ns: int | None, sample: Callable[[str], Path], tmp_path: Path) -> None:
    file = sample(f"serving/proton/{name}.json")

    def summed(node: dict[str, Any]) -> int:
        return int(node["metrics"].get("time (ns)", 0)) + sum(map(summed, node["children"]))

    whole = summed(json.loads(file.read_bytes())[0])
    assert total_ns in (None, whole)
    first, *_ = proton_scopes(stepscope.open(file, store=tmp_path))
    assert (first.path, first.total_ns) == ("ROOT", whole)
