"""A report as one page of HTML, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.findings.report import SCHEMA, ChecklistItem, NextStep, NotRun, Report
from stepscope.present._document import document
from stepscope.present._markup import Markup, el
from stepscope.present._pieces import badge, code, grid
from stepscope.present.formats import format
from stepscope.present.report._cards import findings
from stepscope.present.report._details import TABLES, details
from stepscope.present.report._overview import head, step, verdict
from stepscope.present.report._pictures import pictures
from stepscope.present.report._ranks import ranks
from stepscope.present.report._words import linked, words

__all__ = ["html"]

_STATES = {"pass": "pass", "fail": "high", "info": "other", "not known": "other"}


@format(ending=".html", tables=TABLES)
def html(report: Report) -> str:
    """One page with charts, which needs no other file and no network."""
    sections = {
        "ranks": ("Ranks", ranks(report.run)),
        "step": ("Step", step(report) if report.overview.steps or not report.pictures else None),
        "pictures": ("Memory", pictures(report.pictures)),
        "findings": ("Findings", findings(report)),
        "details": ("Details", details(report.tables)),
        "checklist": ("Checklist", _checklist(report.checklist) if report.checklist else None),
        "not-judged": ("Not judged", _not_judged(report.not_run) if report.not_run else None),
        "next": ("Next steps", _next_steps(report.next_steps) if report.next_steps else None),
        "words": ("Words", words()),
    }
    links = {place: name for place, (name, section) in sections.items() if section}
    shown = [section for _, section in sections.values()]
    footer = el("footer", f"Written by stepscope ({SCHEMA}). Times are those of the mean step unless noted.")
    main = el("main", verdict(report.verdict), *shown, footer, class_="wide")
    return document(report.facts.source, head(report, links), main)


def _checklist(checks: Sequence[ChecklistItem]) -> Markup:
    rows = [
        (badge(check.state, _STATES[check.state]), linked(check.name), check.value, check.target)
        for check in checks
    ]
    heads = (("state", ""), ("check", "strong"), ("this trace", ""), ("target", "muted"))
    table = el("div", grid(heads, rows, "stack"), class_="panel")
    return el("section", el("h2", "Checklist"), table, id="checklist")


def _not_judged(missing: Sequence[NotRun]) -> Markup:
    rows = [
        (el("code", one.id), one.reason, el("code", one.record) if one.record else None) for one in missing
    ]
    heads = (("rule", ""), ("why", ""), ("record with", ""))
    table = el("div", grid(heads, rows, "stack"), class_="panel")
    return el("section", el("h2", "Not judged"), table, id="not-judged")


def _next_steps(steps: Sequence[NextStep]) -> Markup:
    items = [
        el("li", one.text, code(one.command, f"the command of step {n}") if one.command else None)
        for n, one in enumerate(steps, 1)
    ]
    return el("section", el("h2", "Next steps"), el("ol", *items, class_="panel next"), id="next")
