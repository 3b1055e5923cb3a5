"""The formats of a report: each drawn report prints exactly what is kept beside this file.

`UPDATE_SNAPSHOTS=1` updates what is kept; then look at the difference.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.present.drawn_report import empty_report, report

from stepscope.findings import Gain
from stepscope.findings.report import Report
from stepscope.present import _phrases as phrases
from stepscope.present._markdown import code, escaped
from stepscope.present.report.github import github
from stepscope.present.report.json import json as as_json
from stepscope.present.report.markdown import markdown
from stepscope.present.report.prometheus import prometheus
from stepscope.present.report.summary import summary
from stepscope.present.report.terminal import terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
FORMATS: dict[str, Callable[[Report], str]] = {
    "terminal.txt": lambda shown: terminal(shown, width=80, color=False),
    "wide.txt": lambda shown: terminal(shown, width=118, color=False),
    "terminal.ansi": lambda shown: terminal(shown, width=80, color=True),
    "report.md": markdown,
    "summary.md": summary,
    "report.json": as_json,
    "github.txt": github,
    "report.prom": prometheus,
}
REPORTS = {"report": report, "empty": empty_report}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", REPORTS)
def test_a_format_is_what_is_kept(name: str, which: str) -> None:
    text = FORMATS[name](REPORTS[which]())
    kept = SNAPSHOTS / (name if which == "report" else f"empty.{name}")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    """All but code, commands and places, which are for copying."""
    shown = report()
    copied = [line for finding in shown.findings for line in finding.advice.fix.splitlines()]
    copied += [step.command for step in shown.next_steps if step.command]
    places = [place for finding in shown.findings for place in finding.advice.locations]
    copied += [place.file for place in places]
    copied += [inside.file for place in places for inside in place.inside if inside.file]
    for line in terminal(shown, width=width, color=False).splitlines():
        if not any(piece in line for piece in copied):
            longest = max(map(len, line.split()), default=0)
            assert len(line) <= min(width, 118) or longest > width // 2, line


def test_colours_change_no_character() -> None:
    plain = terminal(report(), width=80, color=False)
    coloured = terminal(report(), width=80, color=True)
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_names_from_a_profile_cannot_steer_the_terminal() -> None:
    shown = report()
    facts = dataclasses.replace(shown.facts, source="evil\x1b[2Jname.json")
    text = terminal(dataclasses.replace(shown, facts=facts), width=80, color=False)
    assert "\x1b" not in text


def test_markdown_holds_no_markup_of_others() -> None:
    assert escaped("<b>a|b*c_d`e`[x](y)") == "&lt;b&gt;a\\|b\\*c\\_d\\`e\\`\\[x\\](y)"
    assert code("a`b|c") == "`` a`b\\|c ``"
    outside = re.sub(r"^```.*?^```$|`[^`\n]*`", "", markdown(report()), flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "\u202e" not in markdown(report())


def test_an_annotation_is_one_line() -> None:
    shown = report()
    lines = github(shown).splitlines()
    assert len(lines) == 1 + len(shown.findings)
    for line in lines:
        assert re.match(r"::(notice|warning) ", line)


def test_the_json_has_the_names_that_programs_rely_on() -> None:
    written = json.loads(as_json(report()))
    assert written["schema"] == "stepscope.report/1"
    wanted = {"schema", "trace", "trust", "overview", "verdict", "findings", "not_run", "checklist"}
    assert wanted <= set(written)
    assert len(written["overview"]["unprofiled_step_ns"]) == 2
    assert isinstance(written["overview"]["step_ns"], int)
    for finding in written["findings"]:
        assert {"id", "title", "severity", "gain", "locations", "evidence", "fix"} <= set(finding)
        assert set(finding["gain"]) == {"low_ns", "high_ns", "low_share", "high_share"}
        assert finding["severity"] in ("high", "medium", "low")


def test_what_could_not_be_judged_is_gathered_by_what_to_do() -> None:
    gathered = phrases.not_judged(report())
    assert sum(len(rules) for _, rules in gathered) == len(report().not_run)


@pytest.mark.parametrize(
    "used,text", [(1, "1 of 8 × NVIDIA H200"), (8, "8 × NVIDIA H200"), (0, "8 × NVIDIA H200")]
)
def test_devices_without_work_are_told_apart(used: int, text: str) -> None:
    shown = report()
    overview = dataclasses.replace(shown.overview, devices_with_work=used)
    assert phrases.devices(dataclasses.replace(shown, overview=overview)) == text


@pytest.mark.parametrize(
    "steps,found_by,text",
    [
        (5, "marks", "5 steps"),
        (1, "marks", "1 step"),
        (3, "graph launches", "3 steps (found by graph launches)"),
        (1, "nothing", "no steps found: the whole trace counts as one"),
        (0, "nothing", "no steps found"),
    ],
)
def test_steps_are_said_with_how_they_were_found(steps: int, found_by: str, text: str) -> None:
    overview = dataclasses.replace(report().overview, steps=steps, found_by=found_by)
    assert phrases.steps(overview) == text


def test_a_range_whose_ends_read_alike_is_one_number() -> None:
    overview = dataclasses.replace(
        report().overview, steady_step_ns=111_400_000, unprofiled_step_ns=(100_000_000, 100_200_000)
    )
    assert phrases.inflation(overview) == "profiling made steps ≈ 11 % longer"


def test_a_range_wider_than_half_the_step_is_unknown_until_measured() -> None:
    wide = Gain(low_ns=1_000_000, high_ns=8_000_000, low_share=0.1, high_share=0.8)
    assert phrases.gain(wide) == "−1.00 ms or more, unknown until measured"
    vague = dataclasses.replace(wide, low_ns=0, low_share=0.0)
    assert phrases.gain(vague) == "unknown until measured"
