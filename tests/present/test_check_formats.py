"""The formats of a check: each prints exactly what is kept beside this file; JUnit is sound XML.

`UPDATE_SNAPSHOTS=1` updates what is kept; then look at the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.present.drawn_comparison import comparison, side

from stepscope.compare.budgets import budget_of
from stepscope.compare.check import CheckResult, checked
from stepscope.present.check.github import github
from stepscope.present.check.json import json as as_json
from stepscope.present.check.junit import junit
from stepscope.present.check.markdown import markdown
from stepscope.present.check.terminal import terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
FORMATS: dict[str, Callable[[CheckResult], str]] = {
    "check.txt": lambda shown: terminal(shown, width=80, color=False),
    "check.md": markdown,
    "check.json": as_json,
    "check.xml": junit,
    "check.github.txt": github,
}
BUDGETS = ("step_time < +3 %", "step_time < -26 %", "utilization >= 0.8", "tokens_per_second > 5")


def broken() -> CheckResult:
    change = comparison().whole
    told = [budget_of(text, f"stepscope.toml:{line}") for line, text in enumerate(BUDGETS, 3)]
    return checked(change.after, change, told)


def kept() -> CheckResult:
    return checked(side("alone", 48_000_000), None, [budget_of("step_time < 50 ms", "--budget")])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", ["", "kept."])
def test_a_format_is_what_is_kept(name: str, which: str) -> None:
    text = FORMATS[name](kept() if which else broken())
    file = SNAPSHOTS / f"{which}{name}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_junit_has_a_test_for_each_budget() -> None:
    suites = ET.fromstring(junit(broken()))
    (suite,) = suites
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == list(BUDGETS)
    assert [[one.tag for one in case] for case in cases] == [
        ["system-out"],
        ["system-out"],
        ["failure"],
        ["failure"],
    ]
    for element in (suites, suite):
        assert [element.get(name) for name in ("tests", "failures", "errors", "skipped")] == [
            "4",
            "2",
            "0",
            "0",
        ]


def test_a_broken_budget_is_an_error_where_it_is_written() -> None:
    whole, unsure, failed, unknown = github(broken()).splitlines()
    assert whole.startswith("::error title=stepscope check::")
    assert unsure.startswith("::warning file=stepscope.toml,line=4,")
    assert failed.startswith("::error file=stepscope.toml,line=5,title=fail%3A utilization >= 0.8::")
    assert unknown.startswith("::error file=stepscope.toml,line=6,")
    assert github(kept()).startswith("::notice title=stepscope check::")


def test_the_json_has_the_names_that_programs_rely_on() -> None:
    written = json.loads(as_json(broken()))
    assert written["schema"] == "stepscope.check/1"
    assert written["passed"] is False
    assert [one["state"] for one in written["budgets"]] == ["pass", "not sure", "fail", "not known"]
    assert (written["change"]["before"], written["change"]["after"]) == (0, 1)
    assert json.loads(as_json(kept()))["change"] is None
