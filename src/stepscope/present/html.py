"""A report as one page of HTML, which needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from stepscope.findings.report import SCHEMA, ChecklistItem, NextStep, NotRun, Report
from stepscope.present._cards import findings
from stepscope.present._details import TABLES, details
from stepscope.present._markup import Markup, el
from stepscope.present._overview import head, step, verdict
from stepscope.present._pieces import badge, code, grid
from stepscope.present._style import SCRIPT, STYLE

__all__ = ["TABLES", "document", "page"]

_STATES = {"pass": "pass", "fail": "high", "not known": "other"}


def page(report: Report) -> str:
    """The whole page; the same report always gives the same text."""
    sections = {
        "step": ("Step", step(report)),
        "findings": ("Findings", findings(report)),
        "details": ("Details", details(report.tables)),
        "checklist": ("Checklist", _checklist(report.checklist) if report.checklist else None),
        "not-judged": ("Not judged", _not_judged(report.not_run) if report.not_run else None),
        "next": ("Next steps", _next_steps(report.next_steps) if report.next_steps else None),
    }
    links = {place: name for place, (name, section) in sections.items() if section}
    shown = [section for _, section in sections.values()]
    footer = el(
        "footer", f"Written by stepscope ({SCHEMA}). Times are of the mean step unless said otherwise."
    )
    main = el("main", verdict(report.verdict), *shown, footer, class_="wide")
    return document(report.facts.source, head(report, links), main)


def document(title: str, header: Markup, main: Markup) -> str:
    """A page with its style and its script."""
    body = el("body", header, main, el("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{el('html', _meta(title), body, lang='en')}"


def _meta(source: str) -> Markup:
    # Whatever a name may hold, the page loads nothing and runs no script but its own.
    seal = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{seal}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{source} – stepscope"),
        el("style", Markup(STYLE)),
    )


def _checklist(checks: Sequence[ChecklistItem]) -> Markup:
    rows = [
        (badge(check.state, _STATES[check.state]), check.name, check.value, check.target) for check in checks
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
