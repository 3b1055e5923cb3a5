"""How formats are declared, chosen and given what they take; and one written by the recipe."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.packages import install
from tests.present.drawn_report import report

from stepscope import registry
from stepscope.cli.main import main
from stepscope.cli.output import chosen, show
from stepscope.errors import StepscopeError
from stepscope.findings.report import Report
from stepscope.present.formats import format, needs_of, rendered  # noqa: A004

ROOT = Path(__file__).parent.parent.parent
RECIPE = re.compile(r"^```text\n((?:(?!```).)*?^def slack\(.*?)^```$", re.MULTILINE | re.DOTALL)


def written_by_the_recipe() -> Callable[..., str]:
    """The format that CONTRIBUTING.md shows as a whole one."""
    found = RECIPE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found
    names: dict[str, Any] = {}
    exec(found[1], names)
    return names["slack"]  # type: ignore[no-any-return]


slack = written_by_the_recipe()


@pytest.fixture
def with_slack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Installs the format as another package."""
    found = RECIPE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found
    install(monkeypatch, tmp_path / "site", {"stepscope.present.report": {"slack": "slack_format:slack"}})
    (tmp_path / "site" / "slack_format.py").write_text(found[1], encoding="utf-8")
    monkeypatch.delitem(sys.modules, "slack_format", raising=False)


def test_a_format_of_another_package(
    with_slack: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    assert main(["report", "--demo", "--format", "slack"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("*host-bound*: The GPU computes")
    assert "• " in printed


def test_a_format_of_another_package_is_listed(with_slack: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    printed = capsys.readouterr().out
    for name, _ in registry.names("present.report"):
        assert f"\n  {name} " in printed
    assert "\n  slack " in printed


@pytest.mark.parametrize(
    "output,name",
    [
        ("page.html", "html"),
        ("page.md", "markdown"),
        ("page.summary.md", "summary"),
        ("page.json", "json"),
        ("page.github.txt", "github"),
        ("page.slack.txt", "slack"),
        ("page.txt", "terminal"),
        ("page", "terminal"),
    ],
)
def test_the_ending_of_a_file_chooses(with_slack: None, output: str, name: str) -> None:
    assert chosen("present.report", None, Path(output)).__name__ == name
    assert chosen("present.report", "json", Path(output)).__name__ == "json"


def test_the_terminal_is_the_default() -> None:
    for folder in ("present.report", "present.diff", "present.check"):
        assert chosen(folder, None, None).__name__ == "terminal"


def test_an_unknown_format_hints_at_a_close_one() -> None:
    with pytest.raises(StepscopeError, match="unknown report format 'htlm'") as caught:
        chosen("present.report", "htlm", None)
    assert caught.value.hint == "did you mean html?"
    assert caught.value.exit_code == 2


def test_a_format_gets_only_what_it_takes() -> None:
    @format(ending=".txt")
    def narrow(report: Report, *, width: int) -> str:
        """So many columns."""
        return f"{width}"

    assert rendered(narrow, report(), width=72, color=True) == "72"
    assert rendered(slack, report(), width=72, color=True).startswith("*")
    assert needs_of(slack).tables == ("kernels",)


def test_a_format_that_wants_more_is_refused() -> None:
    with pytest.raises(TypeError, match="not verbose"):

        @format(ending=".txt")
        def loud(report: Report, *, verbose: bool) -> str:
            """Says more."""
            return ""


def test_a_function_without_the_decorator_is_no_format() -> None:
    with pytest.raises(TypeError, match="@format"):
        needs_of(repr)


def test_the_summary_of_a_job_is_written_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    show("present.report", chosen("present.report", "json", None), report())
    assert not (tmp_path / "summary.md").exists(), "json has no page for a job"
    show("present.report", chosen("present.report", "github", None), report())
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("# Sync-bound")
    assert "::notice " in capsys.readouterr().out
