"""The formats of a comparison: each drawn one prints exactly what is kept beside this file.

`UPDATE_SNAPSHOTS=1` updates what is kept; then look at the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.present.drawn_comparison import comparison, empty, history
from tests.present.drawn_report import IMAGE, SCRIPT
from tests.present.test_html import Parsed

from stepscope.compare import Comparison
from stepscope.present import _changes as phrases
from stepscope.present.diff._sections import moves
from stepscope.present.diff.github import github
from stepscope.present.diff.html import html
from stepscope.present.diff.json import json as as_json
from stepscope.present.diff.markdown import markdown
from stepscope.present.diff.summary import summary
from stepscope.present.diff.terminal import terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"
FORMATS: dict[str, Callable[[Comparison], str]] = {
    "diff.txt": lambda shown: terminal(shown, width=80, color=False),
    "diff.wide.txt": lambda shown: terminal(shown, width=118, color=False),
    "diff.md": markdown,
    "diff.summary.md": summary,
    "diff.json": as_json,
    "diff.github.txt": github,
    "diff.html": html,
}
DRAWN = {"": comparison, "history.": history, "empty.": empty}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", DRAWN)
def test_a_format_is_what_is_kept(name: str, which: str) -> None:
    text = FORMATS[name](DRAWN[which]())
    kept = SNAPSHOTS / f"{which}{name}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        kept.write_text(text, encoding="utf-8")
    assert text == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("which", DRAWN)
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_fit_the_terminal(which: str, width: int) -> None:
    for line in terminal(DRAWN[which](), width=width, color=False).splitlines():
        assert len(line) <= min(width, 118), line


def test_colours_change_no_character() -> None:
    coloured = terminal(comparison(), width=80, color=True)
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    plain = terminal(comparison(), width=80, color=False)
    assert "\x1b[" in coloured
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


@pytest.mark.parametrize("name", ["diff.txt", "diff.md", "diff.summary.md", "diff.github.txt", "diff.html"])
def test_names_of_others_steer_nothing(name: str) -> None:
    text = FORMATS[name](comparison())
    assert "\u202e" not in text
    assert "\x00" not in text
    if name.endswith(".md"):
        outside = re.sub(r"`[^`\n]*`", "", text)
        assert "<script" not in outside
        assert "<img" not in outside


@pytest.mark.parametrize("which", DRAWN)
def test_the_page_is_sound(which: str) -> None:
    seen = Parsed(html(DRAWN[which]()))
    names = [tag for tag, _ in seen.elements]
    assert names.count("script") == 1
    assert "img" not in names
    ids = seen.attributes("id")
    assert len(ids) == len(set(ids))
    assert {to.removeprefix("#") for to in seen.attributes("href")} <= set(ids)
    levels = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    outer = [given for tag, given in seen.elements if tag == "svg"]
    assert all(given.get("aria-hidden") == "true" or given.get("aria-label") for given in outer)


def test_the_page_shows_names_as_they_are() -> None:
    text = Parsed(html(comparison())).text()
    assert f"before {SCRIPT}" in text
    assert IMAGE in text


def test_the_waterfall_leads_from_one_step_to_the_other() -> None:
    found = list(moves(comparison().whole))
    assert sum(ns for _, ns in found) == comparison().whole.change_ns
    assert found[:2] == [
        ("kernels: matmul", -8_000_000),
        ("GPU idle after blocking calls: host op", -8_000_000),
    ]


def test_the_json_has_the_names_that_programs_rely_on() -> None:
    written = json.loads(as_json(history()))
    assert written["schema"] == "stepscope.diff/1"
    assert set(written) == {"schema", "sides", "changes", "overall"}
    assert [(change["before"], change["after"]) for change in written["changes"]] == [(0, 1), (1, 2)]
    change = written["overall"]
    assert change["word"] == "faster"
    for division in ("parts", "phases", "ops"):
        assert sum(part["change_ns"] for part in change[division]) == change["change_ns"] == -16_000_000
    assert set(change["interval"]) == {"low_ns", "high_ns", "basis", "assumed_share"}
    assert set(change["findings"]) == {"resolved", "new", "kept"}


def test_how_kernels_changed() -> None:
    told = {part.name[:8]: phrases.how_a_kernel_changed(part) for part in phrases.kernels(comparison().whole)}
    assert told == {
        "void cut": "other kernels, same operator, faster −7.50 ms",
        "triton_<": "more calls +6.00 ms, faster −1.00 ms",
        "Memcpy H": "less exposed",
        IMAGE[:8]: "new",
    }


def test_a_change_within_noise_gives_no_reasons() -> None:
    assert phrases.reasons(history().changes[0]) == ""
    assert "within the noise" in phrases.sentence(history().changes[0])
    assert "(−8.00 ms)" in phrases.reasons(comparison().whole)


def test_annotations_are_one_line_each() -> None:
    lines = github(comparison()).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("::notice title=faster%2C −25.0 %25%3A before")
    assert lines[1].startswith(("::warning ", "::notice "))
