"""A comparison as one page of HTML: both steps, the way from one to the other, and what changed."""

from __future__ import annotations

from stepscope.compare import SCHEMA, Comparison
from stepscope.present._document import document
from stepscope.present._markup import Markup, el, joined
from stepscope.present.diff._sections import (
    both_steps,
    changed_findings,
    changed_kernels,
    changed_ranks,
    history,
    operators_and_phases,
    recorded,
    verdict,
)
from stepscope.present.formats import format

__all__ = ["html"]


@format(ending=".html")
def html(comparison: Comparison) -> str:
    """One page with charts, which needs no other file and no network."""
    change = comparison.whole
    sections = {
        "history": ("History", history(comparison) if comparison.overall else None),
        "steps": ("Before and after", both_steps(change) if change.parts else None),
        "kernels": ("Kernels", changed_kernels(change) if change.parts else None),
        "where": ("Operators and phases", operators_and_phases(change) if change.parts else None),
        "ranks": ("Ranks", changed_ranks(change)),
        "findings": ("Findings", changed_findings(change)),
    }
    links = {place: name for place, (name, section) in sections.items() if section}
    shown = [section for _, section in sections.values()]
    footer = el(
        "footer", f"Written by stepscope ({SCHEMA}). Times are those of the recorded mean step unless noted."
    )
    main = el("main", verdict(change), *shown, footer, class_="wide")
    return document(_title(comparison), _head(comparison, links), main)


def shown(comparison: Comparison) -> Markup:
    """The verdict and both steps, for a place that has no room for the whole page."""
    change = comparison.whole
    return joined([verdict(change), both_steps(change) if change.parts else None])


def _title(comparison: Comparison) -> str:
    return " → ".join(side.name for side in comparison.sides)


def _head(comparison: Comparison, links: dict[str, str]) -> Markup:
    rows = [(side.name, recorded(side)) for side in comparison.sides]
    told = [one for name, value in rows for one in (el("dt", name), el("dd", value))]
    if comparison.whole.caveats:
        notes = el("ul", *(el("li", said) for said in comparison.whole.caveats), class_="doubts")
        told += [el("dt", "Differences"), el("dd", notes)]
    nav = el("nav", *(el("a", text, href=f"#{to}") for to, text in links.items()), aria_label="Sections")
    content = (
        el("p", "stepscope diff", class_="brand"),
        el("h1", _title(comparison)),
        el("dl", *told, class_="facts"),
        nav,
    )
    return el("header", el("div", *content, class_="wide"), class_="top")
