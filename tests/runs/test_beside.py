"""Files of other kinds beside profiles: named together, in a folder or a run, with the rank they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.runs.folders import rank_document, written
from tests.sources.test_execution_trace import flat
from tests.sources.test_execution_trace import written as execution_trace

import stepscope
from stepscope.cli.main import main
from stepscope.runs.finding import find_run
from stepscope.runs.reading import read_run

NAMES = ["aten::a", "aten::b"]


def profile(path: Path, rank: int | None = None) -> Path:
    drawing = Drawing()
    for place, name in enumerate(NAMES):
        drawing.mark(place, 1000 * place, 900).op(name, 1000 * place + 10, 50)
    drawing.write(path)
    if rank is not None:
        document = json.loads(path.read_bytes())
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
        path.write_text(json.dumps(document), encoding="utf-8")
    return path


def nodes(path: Path) -> Path:
    return execution_trace(path, [flat(number, name) for number, name in enumerate(NAMES)])


def joined(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert main(["report", *words, "--format", "json"]) == 0
    printed = capsys.readouterr()
    told: dict[str, Any] = json.loads(printed.out)
    return told, printed.err


class TestOneProfile:
    @pytest.mark.parametrize("order", [1, -1])
    def test_in_any_order(self, order: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = [str(profile(tmp_path / "trace.json")), str(nodes(tmp_path / "et.json"))][::order]
        report, _ = joined(words, capsys)
        assert report["trace"]["source"] == "trace.json"
        assert report["trace"]["kind"] == "kineto"
        assert report["trace"]["joined"] == ["et.json (execution trace, by the order of operators)"]

    def test_a_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        profile(tmp_path / "trace.json")
        nodes(tmp_path / "et.json")
        (tmp_path / "train.py").write_text("pass", encoding="utf-8")
        (tmp_path / "notes.txt").write_text("nothing of ours", encoding="utf-8")
        report, _ = joined([str(tmp_path)], capsys)
        assert len(report["trace"]["joined"]) == 1
        assert main(["show", "op_inputs", str(tmp_path), "--format", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["joined"] for row in rows] == [1, 1]

    def test_in_python(self, tmp_path: Path) -> None:
        words = [profile(tmp_path / "trace.json"), nodes(tmp_path / "et.json")]
        assert stepscope.report(words).facts.joined == (
            "et.json (execution trace, by the order of operators)",
        )

    def test_the_page_names_it(self, tmp_path: Path) -> None:
        words = [str(profile(tmp_path / "trace.json")), str(nodes(tmp_path / "et.json"))]
        for name in ("report.html", "report.md"):
            assert main(["report", *words, "-o", str(tmp_path / name)]) == 0
            assert "by the order of operators" in (tmp_path / name).read_text(encoding="utf-8")

    def test_without_a_profile_the_first_stands_for_it(self, tmp_path: Path) -> None:
        run = find_run([str(nodes(tmp_path / "a.json")), str(nodes(tmp_path / "b.json"))])
        (record,) = run.ranks
        assert [one.path.name for one in record.passes] == ["a.json"]
        assert [Path(word).name for word in record.beside] == ["b.json"]

    def test_one_of_another_rank_is_left_out(self, tmp_path: Path) -> None:
        profile(tmp_path / "trace.json", rank=0)
        run = find_run([str(tmp_path / "trace.json"), str(nodes(tmp_path / "rank1_et.json"))])
        assert run.ranks[0].beside == ()
        assert "rank1_et.json is left out: there is no profile of rank 1 to read it with." in run.notes


class TestManyRanks:
    def test_each_has_its_own(self, tmp_path: Path) -> None:
        for rank in range(2):
            profile(tmp_path / f"rank{rank}.json", rank)
            nodes(tmp_path / f"rank{rank}_et.json")
        run = find_run([str(tmp_path)])
        assert [[Path(word).name for word in one.beside] for one in run.ranks] == [
            ["rank0_et.json"],
            ["rank1_et.json"],
        ]
        assert run.notes == ()

    def test_one_without_a_rank_is_read_with_the_first(self, tmp_path: Path) -> None:
        for rank in range(2):
            profile(tmp_path / f"rank{rank}.json", rank)
        run = find_run([str(tmp_path), str(nodes(tmp_path / "et.json"))])
        assert [len(one.beside) for one in run.ranks] == [1, 0]
        assert "The name of et.json says no rank: it is read with rank 0." in run.notes

    def test_a_report(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for rank in range(2):
            profile(tmp_path / f"rank{rank}.json", rank)
            nodes(tmp_path / f"rank{rank}_et.json")
        report, _ = joined([str(tmp_path)], capsys)
        assert report["run"]["ranks"] == [0, 1]
        assert len(report["trace"]["joined"]) == 1


def test_what_stands_beside_is_read_with_the_full_pass_of_a_run(tmp_path: Path) -> None:
    files = [
        {"path": "light.json", "pass": "light"},
        {"path": "full.json", "pass": "full"},
        {"path": "et.json", "pass": "snapshot"},
    ]
    folder = written(tmp_path, [rank_document(files=files)])
    for name in ("light.json", "full.json"):
        profile(folder / name)
    nodes(folder / "et.json")
    (record,) = read_run(folder).ranks
    light, full = record.named("light"), record.named("full")
    assert light
    assert full
    assert str(folder / "et.json") not in record.also(light)
    assert str(folder / "et.json") in record.also(full)
