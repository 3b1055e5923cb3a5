"""How far the numbers can be trusted, and what the file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._markup import Markup, el, joined
from stepscope.present._pieces import badge
from stepscope.web.page import page
from stepscope.web.parts import heading, section, sections, table_of

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["trust"]

_LARGE, _SMALL = 0.05, 0.01


@page(title="Trust", order=51)
def trust(request: Request) -> Markup:
    """Lists what could distort the numbers."""
    table = table_of(request, "trust")
    doubts = [_card(row) for row in table]
    told = "What could distort the numbers, by how much at most, and what to do about it."
    quiet = el("div", el("p", "Nothing in this profile casts doubt on its numbers."), class_="panel")
    notes = [el("p", note, class_="note small muted") for note in table.notes]
    return joined(
        [
            heading("Trust", told),
            joined([*doubts, *notes]) if doubts else quiet,
            sections(
                [
                    section(request, "What the profile holds", "categories"),
                    section(request, "Versions and switches", "run_settings"),
                ]
            ),
        ]
    )


def _card(row: Any) -> Markup:
    share = row.effect_share
    colour = "low" if share is None or share < _SMALL else "medium" if share < _LARGE else "high"
    effect = units.duration(row.effect_ns) if row.effect_ns is not None else "effect unknown"
    part = f"at most {units.share(share)} of {row.of}" if share is not None and row.of else row.reason or ""
    head = el(
        "div",
        badge(effect, colour, plain=row.effect_ns is None),
        el("h3", row.what),
        el("span", units.counted(row.count, "time"), class_="muted small"),
        el("span", part, class_="gain muted small") if part else None,
        class_="heading",
    )
    advice = el("p", el("strong", "Do: "), row.advice) if row.advice else None
    return el("section", head, el("p", row.explanation, class_="because"), advice, class_=f"card {colour}")
