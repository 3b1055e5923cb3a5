"""A report as one page of HTML, which needs nothing but itself."""

from __future__ import annotations

from stepscope.findings.report import SCHEMA, Report
from stepscope.present._document import document
from stepscope.present._markup import el
from stepscope.present.formats import format
from stepscope.present.report._cards import findings
from stepscope.present.report._details import TABLES, details
from stepscope.present.report._lists import checklist, next_steps, not_judged
from stepscope.present.report._overview import head, step, verdict
from stepscope.present.report._pictures import pictures
from stepscope.present.report._ranks import ranks
from stepscope.present.report._words import words

__all__ = ["html"]


@format(ending=".html", tables=TABLES)
def html(report: Report) -> str:
    """One page with charts, which needs no other file and no network."""
    sections = {
        "ranks": ("Ranks", ranks(report.run)),
        "step": ("Step", step(report) if report.overview.steps or not report.pictures else None),
        "pictures": ("Memory", pictures(report.pictures)),
        "findings": ("Findings", findings(report)),
        "details": ("Details", details(report.tables)),
        "checklist": ("Checklist", checklist(report.checklist) if report.checklist else None),
        "not-judged": ("Not judged", not_judged(report.not_run) if report.not_run else None),
        "next": ("Next steps", next_steps(report.next_steps) if report.next_steps else None),
        "words": ("Words", words()),
    }
    links = {place: name for place, (name, section) in sections.items() if section}
    shown = [section for _, section in sections.values()]
    footer = el("footer", f"Written by stepscope ({SCHEMA}). Times are those of the mean step unless noted.")
    main = el("main", verdict(report.verdict), *shown, footer, class_="wide")
    return document(report.facts.source, head(report, links), main)
