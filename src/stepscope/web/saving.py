"""A page of the window as one file, which needs neither the server nor a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import registry
from stepscope.present._blocks import inert
from stepscope.present._document import head, seal
from stepscope.present._markup import Markup, el
from stepscope.web.bundle import blocks_of, bundled
from stepscope.web.drawing import drawn
from stepscope.web.frame import short
from stepscope.web.page import PAGES, about_page
from stepscope.web.style import sheet

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["saved"]

_STATIC = Path(__file__).parent / "static"


def saved(opened: Opened, name: str, options: Mapping[str, str]) -> str:
    """A page with its style, its scripts and its data."""
    info = about_page(registry.load(PAGES, name))
    request, content = drawn(opened, name, options)
    key = request.key
    which = "" if len(opened.keys) < 2 else f", {key.replace('rank', 'rank ')}"
    title = f"{info.title} – {short(opened.name)}"
    header = el(
        "header",
        el(
            "div",
            el("span", "stepscope", class_="brand"),
            el("span", f"{opened.name}{which}", class_="what"),
            el("span", class_="gap"),
            el("button", "◐", type="button", id="theme-button", aria_label="Dark or light"),
            class_="bar-row",
        ),
        class_="bar",
    )
    early = (_STATIC / "theme.js").read_text(encoding="utf-8")
    late = bundled("page.js", "saved.js", *blocks_of(content))
    main = el("main", content, id="content", tabindex="-1", class_="page wide" if info.wide else "page")
    answers = info.asks(request) if info.asks else {}
    told = el("script", inert(answers), type="application/json", id="answers")
    body = el("body", header, main, told, data_page=name, class_="saved")
    return f"<!DOCTYPE html>\n{el('html', _head(title, early, late), body, lang='en')}"


def _head(title: str, early: str, late: str) -> Markup:
    style = sheet()
    return head(
        title,
        f"style-src {seal(style)}; script-src {seal(early)} {seal(late)}; img-src data: blob:",
        Markup('<link rel="icon" href="data:,">\n'),
        el("script", Markup(early)),
        el("style", Markup(style)),
        el("script", Markup(late), type="module"),
    )
