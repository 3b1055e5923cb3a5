"""`stepscope explain`: findings, analyses and words."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stepscope import registry
from stepscope.cli.main import main
from stepscope.findings import Category
from stepscope.findings.page import PAGES, page_of
from stepscope.glossary import WORDS

RULES = [
    name.replace("_", "-")
    for folder in ("findings.rules", "runs.rules")
    for name, _ in registry.names(folder)
]
ROOT = Path(__file__).parent.parent.parent


def test_every_finding_has_a_page_and_every_page_a_finding() -> None:
    assert sorted(page.stem for page in PAGES.glob("*.md")) == sorted(RULES)


def test_a_page_in_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", "launch-bound"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("launch-bound\n")
    assert "\n    model = torch.compile(model" in printed, "code is indented"
    assert not re.search(r"\*\*|```|^#|\]\(|\x1b", printed, re.MULTILINE), "no markup is left"
    assert all(len(line) <= 80 for line in printed.splitlines() if not line.startswith("    "))
    assert main(["explain", "launch_bound"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", RULES)
def test_links_of_a_page_are_names_that_can_be_explained(name: str) -> None:
    for target in re.findall(r"\]\(([\w-]+)\.md", page_of(name)):
        assert target in RULES


def test_an_analysis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "idle_gaps"]) == 0
    printed = capsys.readouterr().out
    assert "drained_by (str or absent): " in printed
    assert "    stepscope show idle_gaps TRACE\n" in printed


def test_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "user", "frame"]) == 0
    assert capsys.readouterr().out.startswith("user frame\n\nThe innermost Python function")


def test_the_list_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for category in Category:
        assert category.value.capitalize() in lines, "findings stand under their category"
    printed = " ".join(" ".join(lines).split())
    for name in [*RULES, *WORDS, "idle_gaps"]:
        assert name in printed


@pytest.mark.parametrize(
    "asked,hint",
    [("launch-bund", "did you mean launch-bound?"), ("starvd", "did you mean starved?"), ("0", "lists all")],
)
def test_near_misses(asked: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", asked]) == 2
    assert hint in capsys.readouterr().err


@pytest.mark.slow
def test_the_wheel_has_the_pages(tmp_path: Path) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("stepscope-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"stepscope/findings/pages/{rule}.md" for rule in RULES} <= names
    assert "stepscope/manifest.json" in names
