"""The first page: the verdict, where the step goes, and what to change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.present._prose import prose
from stepscope.present._ranks import run_figures
from stepscope.present.explanations import explanation
from stepscope.present.report._cards import findings as cards
from stepscope.present.report._lists import checklist, next_steps, not_judged
from stepscope.present.report._overview import parts, verdict
from stepscope.present.report._pictures import pictures
from stepscope.present.report._words import words
from stepscope.web.links import link
from stepscope.web.page import page

if TYPE_CHECKING:
    from stepscope.findings import Finding
    from stepscope.findings.report import Report
    from stepscope.web.page import Request

__all__ = ["findings"]


@page(title="Findings", order=10, without_profile=True)
def findings(request: Request) -> Markup:
    """Says what limits the program, and what to change."""
    alone = request.options.get("of") == "rank"
    report = request.trace.report() if alone else _whole(request)
    return joined(
        [
            el("h1", "Findings"),
            _ranks(request, report, alone=alone),
            verdict(report.verdict),
            _step(report),
            pictures(report.pictures),
            cards(report, partial(_more, request, report)),
            next_steps(report.next_steps) if report.next_steps else None,
            _folded(report),
            *(_explained(request, finding) for finding in report.findings),
            block("dialogs", None, label="Explanations"),
        ]
    )


def _whole(request: Request) -> Report:
    """On all ranks of a run; else on the trace that is looked at."""
    return request.opened.report() if request.opened.many is not None else request.trace.report()


def _ranks(request: Request, report: Report, *, alone: bool) -> Markup | None:
    """Of a run: what it is, and the choice between all ranks and one of them."""
    opened, key = request.opened, request.key
    if opened.many is None:
        return None
    told = [el("span", one, class_="muted small") for one in (run_figures(report.run) if report.run else ())]
    ranks = el("a", "Ranks", href=link(opened, "ranks", key), class_="small")
    if not key:
        return el("div", *told, ranks, class_="run-line")
    name = key.replace("rank", "rank ")
    chosen = (
        el("a", "all ranks", href=link(opened, "findings", key), aria_current=None if alone else "true"),
        el(
            "a",
            f"{name} alone",
            href=link(opened, "findings", key, of="rank"),
            aria_current="true" if alone else None,
        ),
    )
    switch = el("div", *chosen, class_="switch", role="group", aria_label="Findings of")
    return el("div", switch, *told, ranks, class_="run-line")


def _step(report: Report) -> Markup | None:
    """The bar of the mean step; nothing where a snapshot of memory has no steps."""
    if not report.overview.steps and report.pictures:
        return None
    return parts(report.overview, "Where the mean step goes")


def _more(request: Request, report: Report, finding: Finding) -> Markup:
    """From the card of a finding to where it is seen, and to what it means."""
    opened = request.opened
    key = request.key
    explained = el(
        "a",
        "Explain",
        href=link(opened, "explain", key, rule=finding.id),
        data_dialog=f"explain-{finding.id}",
    )
    if not key:
        return explained
    if opened.many is not None:
        judged = report.run.judged_rank if report.run else None
        rank = finding.ranks[0] if finding.ranks else judged
        key = f"rank{rank}" if f"rank{rank}" in opened.keys else key
    where = f" of {key.replace('rank', 'rank ')}" if opened.many is not None else ""
    return joined(
        [
            el("a", f"Show in timeline{where}", href=link(opened, "timeline", key, finding=finding.id)),
            explained,
            el("a", "What if", href=link(opened, "what_if", request.key)),
        ]
    )


def _explained(request: Request, finding: Finding) -> Markup:
    """What a finding means, in a dialog that opens beside its card."""

    def other(rule: str) -> str:
        return link(request.opened, "explain", request.key, rule=rule)

    return el(
        "dialog",
        el("article", prose(explanation(finding.id), other), class_="prose"),
        el("form", el("button", "Close", autofocus=True), method="dialog"),
        id=f"explain-{finding.id}",
        class_="explained",
        aria_label=f"What {finding.id} means",
    )


def _folded(report: Report) -> Markup:
    """What most people do not look at: it is there when they do."""
    sections = {
        "Checklist": checklist(report.checklist) if report.checklist else None,
        f"Not judged ({len(report.not_run)})": not_judged(report.not_run) if report.not_run else None,
        "Words": words(),
    }
    shown = [
        el("details", el("summary", name), section, class_="folded")
        for name, section in sections.items()
        if section
    ]
    return el("div", *shown, class_="folds")
