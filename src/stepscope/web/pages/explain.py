"""What findings, tables and words mean, as `stepscope explain` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.present._markup import Markup, el, joined
from stepscope.present._prose import prose
from stepscope.present.explanations import explanation, listed
from stepscope.web.links import link
from stepscope.web.page import page

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["explain"]


@page(title="Explain", order=52, without_profile=True)
def explain(request: Request) -> Markup:
    """Explains a finding, a table or a word; without one, lists all."""

    def address(name: str) -> str:
        return link(request.opened, "explain", request.key, rule=name)

    asked = request.options.get("rule", "")
    if not asked:
        return joined([el("h1", "Explain"), *_lists(request)])
    back = el("a", "All explanations", href=link(request.opened, "explain", request.key))
    return joined(
        [
            el("p", back, class_="small"),
            el("article", prose(explanation(asked), address, above=0), class_="prose panel"),
        ]
    )


def _lists(request: Request) -> list[Markup]:
    """All names by what they are, each with its first line."""
    sections: list[Markup] = []
    for heading, names in listed().items():
        told = [
            one
            for name, line in names
            for one in (
                el("dt", el("a", name, href=link(request.opened, "explain", request.key, rule=name))),
                el("dd", line),
            )
        ]
        sections.append(el("section", el("h2", heading), el("dl", *told, class_="panel listed")))
    return sections
