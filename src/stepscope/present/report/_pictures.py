"""What a profile shows beside the step: bars under a heading."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope import units
from stepscope.findings.pictures import Picture
from stepscope.present._charts import bar
from stepscope.present._markup import Markup, el
from stepscope.present._pieces import grid

__all__ = ["pictures"]


def pictures(shown: Sequence[Picture]) -> Markup | None:
    """A panel for each picture; None where there is none."""
    drawn = [_picture(one) for one in shown if one.bars]
    return el("section", el("h2", "Memory"), *drawn, id="pictures") if drawn else None


def _picture(told: Picture) -> Markup:
    rows = [
        (one.name, one.value, units.share(one.share), bar(one.share, "device", f"{one.name}: {one.value}"))
        for one in told.bars
    ]
    heads = ((told.heading, ""), ("size", "number"), ("share", "number"), ("", "wide"))
    return el(
        "section",
        el("h3", told.title) if told.title else None,
        el("p", " ".join(told.sentences)) if told.sentences else None,
        grid(heads, rows),
        class_="panel",
    )
