"""The rules that our scripts keep to: no markup from text, nothing from elsewhere, one style of imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope import registry
from stepscope.web.bundle import EXPORT, IMPORT, bundled
from stepscope.web.style import sheet

STATIC = registry.PACKAGE / "web" / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
SHEETS = sorted(STATIC.rglob("*.css"))
FORBIDDEN = {
    "markup from text": r"(?:inner|outer)HTML|AdjacentHTML|document\.write|ContextualFragment|DOMParser",
    "code from text": r"\beval\(|new Function\(|setTimeout\(\s*[\"'`]|setInterval\(\s*[\"'`]|javascript:",
    "inline style": r"setAttribute\(\s*[\"'`]style|\.cssText\b",
    "handlers from text": r"setAttribute\(\s*[\"'`]on\w+",
    "an end of a script": r"</script",
}
ELSEWHERE = re.compile(r"(?:https?:)?//[\w-]+\.[\w.]+")
ALLOWED = {
    "perfetto.js": {"https://ui.perfetto.dev"},
}
SVG = "http://www.w3.org"
"""The name of a language, at which nothing is loaded."""


def named(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_no_script_does_what_names_could_misuse(path: Path, what: str) -> None:
    assert re.findall(FORBIDDEN[what], path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [*SCRIPTS, *SHEETS], ids=named)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    found = set(ELSEWHERE.findall(path.read_text(encoding="utf-8")))
    assert found <= ALLOWED.get(named(path), set()) | {SVG}


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_every_script_is_checked_and_imports_in_one_style(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name != "theme.js":  # runs before all others and is no module
        assert text.startswith("// @ts-check\n")
    assert "@ts-ignore" not in text
    assert "@ts-nocheck" not in text
    assert len(re.findall(r"^\s*import\b(?!\()", text, re.MULTILINE)) == len(IMPORT.findall(text))
    assert len(re.findall(r"^\s*export\b", text, re.MULTILINE)) == len(EXPORT.findall(text))
    for _, _, address in IMPORT.findall(text):
        assert (path.parent / address).resolve().is_relative_to(STATIC)
        assert (path.parent / address).is_file()
    for address in re.findall(r"\bimport\((.)(..)", text):
        assert address[1].startswith("./") or address[1] == ".."


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_no_module_is_imported_in_a_circle(path: Path) -> None:
    text = bundled(named(path))
    assert not re.search(r"^(?:import|export)\b", text, re.MULTILINE)
    assert f'modules["{named(path)}"]' in text


def test_a_bundle_runs_what_is_imported_first() -> None:
    text = bundled("page.js")
    assert text.index('modules["keys.js"] =') < text.index('modules["page.js"] =')


def test_every_block_has_something_that_draws_it() -> None:
    for path in (STATIC / "blocks").glob("*.js"):
        assert "draw" in [found[1] for found in EXPORT.finditer(path.read_text(encoding="utf-8"))]


def test_sheets_load_nothing() -> None:
    assert "@import" not in sheet()
    assert re.findall(r"url\((?!data:)", sheet()) == []
