"""What several sections of the page have: tables, code to copy, figures with their units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from stepscope import units
from stepscope.present._markup import Markup, el, joined, lines
from stepscope.tables import Table

__all__ = ["COLOURS", "badge", "code", "figure", "grid", "notes", "panel", "title_of", "worded"]

COLOURS = {
    "kernel": "device",
    "memcpy": "copy",
    "memset": "fill",
    "communication": "communication",
    "runtime": "calls",
    "dataloader": "input",
    "cpu": "host",
    "other": "other",
}
"""The colour of each part of a step."""
_READ = {
    "gb_per_s": "GB/s",
    "tflops_per_s": "TFLOP/s",
    "mfu_share": "MFU",
    "hfu_share": "HFU",
    "flops": "FLOPs",
}
"""What people write otherwise than a name does."""


def panel(heading: str, *content: str | None) -> Markup:
    """A box with a heading."""
    return el("section", el("h3", heading), *content, class_="panel")


def badge(text: str, colour: str, *, plain: bool = False) -> Markup:
    """A word that stands out."""
    return el("span", text, class_=f"badge {colour}{' plain' if plain else ''}")


def code(text: str, what: str) -> Markup:
    """Something to type, with a button that copies it."""
    button = el("button", "Copy", type="button", hidden=True, aria_label=f"Copy {what}")
    return el("div", el("pre", el("code", lines(text))), button, class_="copied")


def grid(heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | None]], class_: str = "") -> Markup:
    """A table that scrolls by itself where the page is narrow; heads come with the class of their column."""
    head = el("tr", *(el("th", name, scope="col", class_=kind or None) for name, kind in heads))
    lines = [
        el("tr", *(el("td", cell, class_=kind or None) for cell, (_, kind) in zip(row, heads, strict=True)))
        for row in rows
    ]
    table = el("table", el("thead", head), el("tbody", *lines), class_=class_ or None)
    return el("div", table, class_="scroll")


def notes(table: Table[Any], *more: str) -> Markup:
    """What has to be said beside a table."""
    return joined(el("p", line, class_="note small muted") for line in (*more, *table.notes))


def figure(name: str, value: object) -> str:
    """A value as people read it; its unit is the end of its name."""
    if value is None:
        return units.ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_ns"):
        return units.duration(value)
    if name == "bytes" or name.endswith("_bytes"):
        return units.size(value)
    if name == "share" or name.endswith("_share"):
        return units.share(value)
    return units.count(value) if isinstance(value, int) else units.number(value)


def worded(text: str) -> Markup:
    """A sentence of a rule; what stands between backticks in it is code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one of them belongs to a name
        return joined([text])
    return joined(el("code", piece) if place % 2 else piece for place, piece in enumerate(pieces))


def title_of(name: str) -> str:
    """The name of a figure without its unit, in words."""
    for unit in ("_ns", "_bytes"):
        name = name.removesuffix(unit)
    for written, read in _READ.items():
        name = re.sub(rf"(?<![a-z]){written}(?![a-z])", read, name)
    return name.replace("_", " ")
