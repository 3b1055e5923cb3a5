"""Two traces side by side, and the change divided among what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.compare.ranks import ChangedRank, paired_ranks
from stepscope.present._markup import Markup, el, joined
from stepscope.present.diff._sections import (
    both_steps,
    changed_findings,
    changed_kernels,
    operators_and_phases,
    recorded,
    verdict,
)
from stepscope.tables import Table
from stepscope.web.grids import grid
from stepscope.web.links import link
from stepscope.web.page import page

if TYPE_CHECKING:
    from stepscope.compare import Side, StepChange
    from stepscope.web.page import Request

__all__ = ["compare"]


@page(title="Compare", order=41, about="two")
def compare(request: Request) -> Markup:
    """Shows what changed from one trace to the other, and why."""
    comparison = request.opened.comparison()
    change = comparison.whole
    sides = [
        el(
            "section",
            el("h3", name.capitalize(), " ", el("span", side.name, class_="muted")),
            el("p", _looked_at(side), recorded(side), class_="small"),
            el(
                "p",
                *(
                    el("a", title, href=link(request.opened, page, name))
                    for page, title in (
                        ("findings", "Findings"),
                        ("timeline", "Timeline"),
                        ("kernels", "Kernels"),
                        ("operators", "Operators"),
                    )
                ),
                class_="links small",
            ),
            class_="panel",
        )
        for name, side in zip(("before", "after"), comparison.sides, strict=False)
    ]
    caveats = [el("li", one) for one in change.caveats]
    return joined(
        [
            el("h1", "Compare"),
            el("div", *sides, class_="pair"),
            verdict(change),
            el("ul", *caveats, class_="panel caveats small") if caveats else None,
            *(
                (both_steps(change), changed_kernels(change), operators_and_phases(change))
                if change.parts
                else ()
            ),
            _ranks(change),
            changed_findings(change),
        ]
    )


def _looked_at(side: Side) -> str:
    """Of a run, the rank that is compared in depth."""
    return f"rank {side.report.facts.rank} of {side.ranks.ranks}, " if side.ranks else ""


def _ranks(change: StepChange) -> Markup | None:
    """Every rank that both runs have; None where sides are single ranks."""
    paired = paired_ranks(change)
    if paired is None:
        return None
    said = (
        "Ranks are paired by their numbers; what is not on both sides is named above. Times are those of "
        "the mean step. What stands under the verdict compares one rank in depth."
    )
    table = Table.of(ChangedRank, paired.most_changed, ["Times are means over the steps."])
    return el(
        "section",
        el("h2", "Ranks"),
        el("p", said, class_="note small muted"),
        grid(table, "changed_ranks"),
        id="ranks",
    )
