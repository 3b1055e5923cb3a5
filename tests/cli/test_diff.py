"""`stepscope diff` and `stepscope check` as commands: formats, exit codes, and the example in the docs."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.commands import DATA
from tests.drawing import Drawing

from stepscope.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("answers_kept")]

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program before and after it was mended, which is also where commands are typed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(tmp_path)
    for side, name in (("faulty", "before"), ("mended", "after")):
        profile = DATA / "faults" / f"unfused_attention.{side}.light.pt.trace.json.gz"
        shutil.copy(profile, tmp_path / f"{name}.json.gz")
    return tmp_path


BOTH = ["before.json.gz", "after.json.gz"]


@pytest.mark.parametrize(
    "options,begins",
    [
        ([], "before → after · NVIDIA H200\n"),
        (["--format", "markdown"], "# Faster (−43.8 %): before → after"),
        (["--format", "summary"], "# Comparison of PyTorch profiles"),
        (["--format", "html"], "<!DOCTYPE html>"),
        (["--format", "json"], "{\n"),
        (["--format", "github"], "::notice title=faster%2C −43.8 %25%3A before → after::"),
    ],
)
def test_formats(place: Path, options: list[str], begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *BOTH, *options]) == 0
    assert capsys.readouterr().out.startswith(begins)


def test_a_format_to_a_file_and_to_the_summary_of_a_job(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *BOTH, "--format", "json", "-o", "out.json"]) == 0
    assert capsys.readouterr().out == "faster, −43.8 %: out.json\n"
    written = json.loads((place / "out.json").read_text(encoding="utf-8"))
    change = written["changes"][0]
    assert sum(part["change_ns"] for part in change["parts"]) == change["change_ns"]
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    assert main(["diff", *BOTH, "--format", "github"]) == 0
    assert (place / "summary.md").read_text(encoding="utf-8").startswith("# Faster")


@pytest.mark.parametrize(
    "words,code,said",
    [
        (["before.json.gz"], 2, "stepscope diff BEFORE AFTER"),
        ([*BOTH, "--format", "sumary"], 2, "did you mean summary?"),
        (["before.json.gz", "nowhere.json.gz"], 1, "nowhere.json.gz"),
        (["before.json.gz", "nowhere-*.json.gz"], 1, "no file fits the pattern"),
    ],
)
def test_what_is_wrong_is_said(
    place: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *words]) == code
    assert said in capsys.readouterr().err


def test_exit_codes_of_a_check(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = BOTH
    assert main(["check", after, "--baseline", before]) == 0
    assert "1 of 1 budget met" in capsys.readouterr().out
    assert main(["check", before, "--baseline", after]) == 3
    assert "beyond the noise" in capsys.readouterr().out
    assert main(["check", before, "--baseline", before, "--budget", "step_time < +3 %"]) == 0
    assert main(["check", after, "--budget", "utilization >= 0.8"]) == 3
    assert main(["check", after, "--budget", "peak_memory <= 70 GiB"]) == 3, "not known"
    capsys.readouterr()
    assert main(["check", after]) == 2
    assert "--baseline TRACE" in capsys.readouterr().err
    assert main(["check", after, "--budget", "step_time < +3 %"]) == 2
    assert main(["check", after, "--budget", "speed > 3"]) == 1
    assert main(["check", "nowhere.json.gz", "--baseline", before]) == 1


def test_a_check_for_machines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "after.json.gz", "--budget", "utilization >= 0.8", "--junit", "out.xml"]
    assert main([*words, "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)["passed"] is False
    assert ET.parse(place / "out.xml").getroot().get("failures") == "1"


def test_the_example_in_the_docs_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the workflow, with the budgets beside it: it passes for a like run, and fails else."""
    shutil.copy(EXAMPLES / "stepscope.toml", place / "stepscope.toml")
    workflow = (EXAMPLES / "performance.yml").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"run: (stepscope .*)", workflow)]
    assert [words[1] for words in typed] == ["check", "diff"]
    for folder, profile in (("baseline", "after"), ("traces", "after")):
        (place / folder).mkdir()
        for run in (1, 2):
            shutil.copy(place / f"{profile}.json.gz", place / folder / f"run-{run}.json.gz")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    assert [main(words[1:]) for words in typed] == [0, 0]
    assert (place / "step-time.html").stat().st_size > 10_000
    assert ET.parse(place / "step-time.xml").getroot().get("tests") == "4"
    for run in (1, 2):
        shutil.copy(place / "before.json.gz", place / "traces" / f"run-{run}.json.gz")
    capsys.readouterr()
    assert main(typed[0][1:]) == 3
    printed = capsys.readouterr().out
    assert "::error file=stepscope.toml,line=3,title=fail%3A step_time < +3 %25::" in printed
    assert "# Budgets broken" in (place / "summary.md").read_text(encoding="utf-8")


def test_the_page_shows_the_example_files() -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    for file in EXAMPLES.iterdir():
        assert f"```text\n{file.read_text(encoding='utf-8')}```" in page


UNFIT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda _: b'{"traceEvents": []}', "has no steps"),
    "only a header": (
        lambda _: b'{"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "x", "ts": 1}]}',
        "no steps",
    ),
    "cut": (lambda whole: whole[: len(whole) * 2 // 3], "is not whole"),
    "gz cut": (lambda whole: gzip.compress(whole)[:-60], "is not whole"),
    "without steps": (
        lambda whole: whole.replace(b"ProfilerStep#", b"Something").replace(b"Optimizer.", b"Other."),
        "No steps were found",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_gate_does_not_pass_on_nothing(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Drawing().mark(0, 0, 100).op("aten::mm", 1, 90).mark(1, 100, 100).op("aten::add", 101, 7)
    make, reason = UNFIT[what]
    (tmp_path / "whole.json").write_text(whole.json(), encoding="utf-8")
    (tmp_path / "given.json").write_bytes(make(whole.json().encode()))
    given = str(tmp_path / "given.json")
    for budget, *more in (
        ("finding any = none", "--strict"),
        ("finding any <= high", "--baseline", str(tmp_path / "whole.json")),
        ("step_time < 1 s", "--format", "json"),
        ("kernels_per_step < 9",),
    ):
        assert main(["check", given, "--budget", budget, *more]) == 3, (budget, more)
        assert reason in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(tmp_path / "whole.json"), "--baseline", given]) == 3
    assert reason in " ".join(capsys.readouterr().out.split())


def test_a_finding_that_was_not_judged_keeps_no_budget(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for budget in ("finding memory-growth = none", "finding any <= high"):
        assert main(["check", "after.json.gz", "--budget", budget]) == 3
        assert "could not be judged" in " ".join(capsys.readouterr().out.split())
