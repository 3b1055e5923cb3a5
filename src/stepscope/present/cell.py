"""A report in the output of a notebook's cell: the verdict and what to look at, no more."""

from __future__ import annotations

from stepscope.findings.report import Report
from stepscope.present._markup import Markup, el, joined
from stepscope.present._phrases import worth

__all__ = ["cell"]

_MOST = 5


def cell(report: Report, folder: str) -> Markup:
    """The verdict, the first findings and what to type for more, as a piece of HTML."""
    verdict = report.verdict
    found = [el("li", finding.advice.title, " (", worth(finding), ")") for finding in report.findings[:_MOST]]
    more = len(report.findings) - len(found)
    said = f"{more} more in the report. " if more else ""
    return el(
        "div",
        el(
            "p",
            el("strong", f"{verdict.word.capitalize()}."),
            f" {verdict.sentence} {verdict.promise}".rstrip(),
        ),
        el("ol", joined(found)) if found else None,
        el("p", f"{said}Where, why and how to fix it: ", el("code", f"stepscope report {folder}")),
    )
