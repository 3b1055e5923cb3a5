"""Reports on memory snapshots and timelines alone: an honest verdict, and a picture of the memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.samples import DATA
from tests.snapshots import FORWARD, MIB, DrawnAllocator

import stepscope
from stepscope.cli.main import main
from stepscope.compare.build import compare
from stepscope.findings.build import build_report
from stepscope.findings.report import Report

REAL = DATA / "h200_memory_snapshot.pickle.gz"


pytestmark = pytest.mark.usefixtures("answers_kept")


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))


def drawn(path: Path, size: int, *, history: bool = True) -> Path:
    made = DrawnAllocator()
    made.alloc(made.segment(64 * MIB, recorded=history), size, FORWARD, recorded=history)
    return made.write(path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(stepscope.open(REAL, store=tmp_path_factory.mktemp("store")))


class TestASnapshotAlone:
    def test_it_says_nothing_about_speed(self, real: Report) -> None:
        assert real.verdict.word == "unknown"
        assert "nothing is said about speed" in real.verdict.sentence
        assert "5.38 GiB" in real.verdict.sentence
        assert not real.checklist
        assert not any(finding.gain.high_ns for finding in real.findings)

    def test_its_pictures_add_up(self, real: Report) -> None:
        assert [picture.heading for picture in real.pictures] == [
            "by kind",
            "by line of code",
            "by line of code",
        ]
        for picture in real.pictures:
            assert sum(bar.share for bar in picture.bars) == pytest.approx(1, abs=0.002)
        assert real.pictures[0].bars[0].name == "activations"

    @pytest.mark.parametrize("style", ["terminal", "markdown", "html", "json", "summary"])
    def test_every_format_shows_it(self, capsys: pytest.CaptureFixture[str], style: str) -> None:
        assert main(["report", str(REAL), "--format", style]) == 0
        text = capsys.readouterr().out
        assert "nothing is said about speed" in text.replace("\n           ", " ") or style == "summary"
        if style in ("terminal", "markdown", "html"):
            assert "optimizer state" in text
            assert "1.13 GiB" in text
        if style == "json":
            assert next(bar["name"] for bar in json.loads(text)["pictures"][0]["bars"]) == "activations"

    def test_without_a_history(self, tmp_path: Path) -> None:
        report = build_report(stepscope.open(drawn(tmp_path / "x.pickle", MIB, history=False)))
        assert "the peak is not known" in report.verdict.sentence
        assert len(report.pictures) == 1
        assert {one.id for one in report.not_run} >= {"retained-graph", "large-activations"}


def test_a_memory_timeline_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([[-1, 1, 1000, 0], [5, 2, 3000, 4]]))
    report = build_report(stepscope.open(path))
    assert "most of it activations" in report.verdict.sentence
    assert [bar.name for bar in report.pictures[0].bars] == ["activations", "parameters"]


def test_two_snapshots_are_compared(tmp_path: Path) -> None:
    sides = [stepscope.open(drawn(tmp_path / f"{size}.pickle", size * MIB)) for size in (2, 6)]
    change = compare([("before", [sides[0]]), ("after", [sides[1]])]).whole
    assert change.caveats == (
        "Memory in use at the peak: 2.00 MiB → 6.00 MiB.",
        "Memory in use at the end: 2.00 MiB → 6.00 MiB.",
        "Held by /home/me/train.py(10): forward (unknown): 2.00 MiB → 6.00 MiB.",
    )
