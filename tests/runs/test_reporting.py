"""Reports on runs of many ranks: real ones, and what their formats show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.cli.main import main

Sample = Callable[[str], Path]
pytestmark = pytest.mark.usefixtures("answers_kept")


def report(*words: object, capsys: pytest.CaptureFixture[str], shape: str = "json") -> str:
    assert main(["report", *map(str, words), "--format", shape]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_real_run_names_the_rank_that_is_late(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 3 of these four comes last to all 21 collectives."""
    told: dict[str, Any] = json.loads(report(sample("ranks/ddp_mi300_4"), capsys=capsys))
    run = told["run"]
    assert run["ranks"] == [0, 1, 2, 3]
    assert run["missing_ranks"] == []
    assert run["judged_rank"] == 3
    assert run["compared_rank"] in (0, 1, 2)
    first = run["stragglers"][0]
    assert (first["rank"], first["cause"], first["last_share"]) == (3, "host", 1.0)
    assert {one["state"] for one in run["clocks"]} == {"reference", "fitted"}
    assert run["groups"][0]["ranks"] == "0,1,2,3"
    assert "Rank 3 comes last to 100 % of its collectives" in told["verdict"]["sentence"]
    assert any("rank" in one["id"] for one in told["findings"])
    text = report(sample("ranks/ddp_mi300_4"), capsys=capsys, shape="terminal")
    assert "in depth: rank 3, which sets the pace" in " ".join(text.split())
    assert all(len(line) <= 80 for line in text.split("\n 1  ")[0].splitlines())
    page = report(sample("ranks/ddp_mi300_4"), capsys=capsys, shape="html")
    for heading in ("Who waits for whom", "Rank by step", "The critical path across ranks", "Clocks"):
        assert heading in page
    assert "| rank |" in report(sample("ranks/ddp_mi300_4"), capsys=capsys, shape="markdown")


@pytest.mark.slow
def test_one_rank_alone(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(report(sample("ranks/ddp_mi300_4"), "--rank", "1", capsys=capsys))
    assert told["trace"]["rank"] == 1
    assert "run" not in told


@pytest.mark.slow
def test_files_and_patterns_are_a_run(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    files = [sample(f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz") for rank in (0, 1)]
    pattern = str(files[0]).replace("rank0", "rank*")
    by_files, by_pattern = (json.loads(report(*words, capsys=capsys))["run"] for words in (files, [pattern]))
    assert by_files["ranks"] == by_pattern["ranks"] == [0, 1]
    assert by_files["stragglers"] == by_pattern["stragglers"]
    assert by_files["name"] != by_pattern["name"]


@pytest.mark.slow
def test_a_missing_and_a_damaged_rank_are_named(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sample("ranks/ddp_mi300_4")
    for rank in (0, 3):
        shutil.copy(folder / f"rank{rank}.json.gz", tmp_path)
    (tmp_path / "rank2.json.gz").write_bytes(b"not a profile")
    run = json.loads(report(tmp_path, capsys=capsys))["run"]
    assert run["ranks"] == [0, 3]
    assert run["missing_ranks"] == [1, 2]
    assert any("rank2.json.gz" in one for one in run["failed"])
    assert run["stragglers"][0]["rank"] == 3


@pytest.mark.slow
def test_summaries_alone_make_a_report(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the nodes `stepscope summarize` writes what the head needs, and profiles stay there."""
    whole = json.loads(report(sample("ranks/ddp_mi300_4"), capsys=capsys))["run"]
    for rank in range(4):
        profile = sample(f"ranks/ddp_mi300_4/rank{rank}.json.gz")
        assert main(["summarize", str(profile), "-o", str(tmp_path / f"rank{rank}.summary")]) == 0
    capsys.readouterr()
    told = json.loads(report(tmp_path, capsys=capsys))
    for name in ("ranks", "stragglers", "clocks", "groups", "step_ns"):
        assert told["run"][name] == whole[name]
    assert "Only summaries are here" in told["verdict"]["sentence"] or "Rank 3" in told["verdict"]["sentence"]
    assert "IMBALANCED" in (text := report(tmp_path, capsys=capsys, shape="terminal")) or "rank 3" in text


@pytest.mark.slow
def test_two_runs_are_compared(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sample("ranks/ddp_mi300_4")
    assert main(["diff", str(folder), str(folder), "--format", "json"]) == 0
    sides = json.loads(capsys.readouterr().out)["sides"]
    assert [side["run"]["late_rank"] for side in sides] == [3, 3]
    assert [side["runs"][0]["trace"]["rank"] for side in sides] == [3, 3]
    assert main(["diff", str(folder), str(folder)]) == 0
    assert "All 4 ranks: step of the run" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_from_python(sample: Sample) -> None:
    folder = sample("ranks/ddp_mi300_4")
    by_folder = stepscope.report(folder)
    by_list = stepscope.report([folder / f"rank{rank}.json.gz" for rank in range(4)])
    assert by_folder.run is not None
    assert by_list.run is not None
    assert by_folder.run.judged_rank == by_list.run.judged_rank == 3
    assert by_folder.findings == by_list.findings
    assert stepscope.report(folder / "rank1.json.gz").run is None
