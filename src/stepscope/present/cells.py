"""Values in the output of a notebook's cell: inert HTML, with a style that reaches nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present import _style
from stepscope.present._markup import Markup, el, joined, shortened
from stepscope.present._pieces import figure, grid, notes, title_of
from stepscope.present.diff import html as diff
from stepscope.present.report._cards import findings
from stepscope.present.report._overview import step, verdict

if TYPE_CHECKING:
    from stepscope.compare import Comparison
    from stepscope.findings.report import Report
    from stepscope.tables import Table

__all__ = ["comparison_cell", "facts_cell", "report_cell", "table_cell"]

_ROWS = 20
_FINDINGS = 5
_TEXT = 160
"""So long a text of a table may be; a kernel's name can have thousands of characters."""
_DARK = ("body[data-jp-theme-light='false']", "body.vscode-dark", "html[theme='dark'] body")
"""How notebooks say that they are dark; others follow the machine."""
_LIGHT = ("body[data-jp-theme-light='true']", "body.vscode-light", "html[theme='light'] body")


def table_cell(table: Table[Any]) -> Markup:
    """The first rows of a table."""
    heads = [(title_of(column.name), "" if column.type == "str" else "number") for column in table.columns]
    rows = [
        [shortened(figure(name, value), _TEXT) for name, value in row.items()]
        for row in table.arrow.slice(0, _ROWS).to_pylist()
    ]
    more = len(table) - len(rows)
    said = [f"{units.count(more)} more rows."] if more else []
    return _cell(grid(heads, rows) if rows else el("p", "No rows.", class_="muted"), notes(table, *said))


def report_cell(report: Report) -> Markup:
    """The verdict, where the step goes, and the first findings."""
    from dataclasses import replace

    few = replace(report, findings=report.findings[:_FINDINGS])
    more = len(report.findings) - _FINDINGS
    return _cell(
        verdict(report.verdict),
        step(report) if report.overview.steps else None,
        findings(few),
        el("p", f"{units.counted(more, 'finding')} more.", class_="muted") if more > 0 else None,
        _typed(f"stepscope open {report.facts.source}"),
    )


def comparison_cell(comparison: Comparison) -> Markup:
    """What changed, and where."""
    before, after = comparison.sides[0].name, comparison.sides[-1].name
    return _cell(diff.shown(comparison), _typed(f"stepscope open {after} --against {before}"))


def facts_cell(title: str, rows: Sequence[tuple[str, str]], command: str) -> Markup:
    """What something is, line by line, and what to type for more."""
    told = [one for name, value in rows if value for one in (el("dt", name), el("dd", value))]
    return _cell(
        el("section", el("h3", title), el("dl", *told, class_="facts"), class_="panel"), _typed(command)
    )


def _typed(command: str) -> Markup:
    return el("p", "In the browser: ", el("code", command), class_="note small muted")


def _cell(*content: str | None) -> Markup:
    # A notebook has its own ids and its own links to them.
    inside = Markup(joined(content).replace(' id="', ' data-id="'))
    return el("div", el("style", Markup(_sheet())), inside, class_="stepscope-cell")


@cache
def _sheet() -> str:
    """The style of the report, for what lies in a cell alone."""
    style = _style.STYLE
    style = style[style.index("\n* {") :]  # colours come first, and stand below for the cell
    own = (
        style.replace("\nhtml {", "\n.no-page {")
        .replace("\nbody {", "\n& {")
        .replace("\n  @page", "\n  & .no-page")
    )
    light, dark = (_style.variables(name) for name in ("light", "dark"))
    meanings = "\n".join(f".{name} {{ --c: var(--{name}); }}" for name in _style.MEANINGS)
    at = [f"{one} .stepscope-cell {{ {light} }}" for one in _LIGHT]
    at += [f"{one} .stepscope-cell {{ {dark} }}" for one in _DARK]
    return "\n".join(
        [
            f".stepscope-cell {{ {light} }}",
            f"@media (prefers-color-scheme: dark) {{ .stepscope-cell {{ {dark} }} }}",
            *at,
            ".stepscope-cell {",
            meanings,
            own,
            "& { background: var(--ground); padding: 10px 12px; border-radius: 8px; max-width: 1160px; }",
            "& h2 { margin-top: 18px; }",
            "& table { color: var(--text); background: none; }",
            "}",
        ]
    )
