"""Traces, tables, reports, comparisons and runs in a notebook, run by a real kernel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.browsers import chromium, look
from tests.capture.test_notebook import run_cells
from tests.commands import DATA, SLOW_ITEM
from tests.hostile import hostile_trace
from tests.samples import open_shared

import stepscope
from stepscope import showing
from stepscope.cli.traces import DEMO

MOST_BYTES = 200_000
CELLS = (
    f"import stepscope\ntrace = stepscope.open({str(SLOW_ITEM)!r})\ntrace",
    'trace.table("kernels")',
    "stepscope.report(trace)",
    f"stepscope.diff({str(DEMO)!r}, trace)",
    f"from stepscope.cluster.opening import open_run\nopen_run([{str(DATA / 'h200_ddp_gloo_rank*')!r}])",
)


@pytest.mark.slow
def test_a_real_notebook_shows_all_of_them(torch: Any, tmp_path: Path) -> None:
    found = [outputs[-1]["data"]["text/html"] for outputs in run_cells(tmp_path, *CELLS)]
    for one in found:
        assert one.startswith('<div class="stepscope-cell">')
        assert len(one) < MOST_BYTES
    trace, table, report, comparison, run = found
    assert "Trace of" in trace
    assert "<th" in table
    assert 'class="panel verdict' in report
    assert 'class="panel verdict' in comparison
    assert "2 of 2" in run


@pytest.fixture(scope="module")
def cells() -> list[str]:
    trace = open_shared(SLOW_ITEM)
    shown = (trace, trace.table("kernels"), stepscope.report(trace), stepscope.diff(DEMO, trace))
    return [str(one._repr_html_()) for one in shown]


@pytest.mark.slow
def test_cells_are_inert_and_bounded(cells: list[str]) -> None:
    for one in cells:
        assert len(one) < MOST_BYTES
        assert not re.search(r"<script|<iframe|<link|\son\w+=|\sid=", one)


@pytest.mark.slow
def test_the_style_of_a_cell_reaches_nothing_else(cells: list[str], tmp_path: Path) -> None:
    outside = "<h1>Title</h1><p class='muted panel'>text</p><table><tr><td>1</td></tr></table>"
    look_of = """[...document.querySelectorAll("body, .out *")].map((one) => {
      const s = getComputedStyle(one); return [s.color, s.backgroundColor, s.fontSize, s.padding, s.border];
    })"""
    seen: list[object] = []
    looked: Any = None
    with chromium() as browser:
        for name, inside in (("without", ""), ("with", "".join(cells))):
            file = tmp_path / f"{name}.html"
            text = f"<!DOCTYPE html><meta charset=utf-8><body><div class=out>{outside}</div>{inside}</body>"
            file.write_text(text, encoding="utf-8")
            looked = look(browser, file.as_uri(), scheme="dark")
            assert looked.complaints == []
            seen.append(looked.page.evaluate(look_of))
        assert seen[0] == seen[1]
        ground = "getComputedStyle(document.querySelector('.stepscope-cell')).backgroundColor"
        page = looked.page
        dark = page.evaluate(ground)
        page.evaluate("document.body.dataset.jpThemeLight = 'true'")
        assert page.evaluate(ground) != dark
        assert page.evaluate("document.querySelector('.stepscope-cell table').offsetHeight") > 0


@pytest.mark.slow
def test_names_never_become_markup(tmp_path: Path) -> None:
    evil = "</style><img src=x onerror=alert(1)>"
    trace = stepscope.open(hostile_trace(tmp_path / "t.json", evil=evil), store=tmp_path / "stores")
    for value in (trace, trace.table("kernels"), stepscope.report(trace)):
        assert "<img" not in str(value._repr_html_())


def test_without_a_drawer_the_text_is_shown() -> None:
    kept, showing._drawers[:] = list(showing._drawers), []
    try:
        assert showing.InNotebook()._repr_html_() is None
    finally:
        showing._drawers[:] = kept
