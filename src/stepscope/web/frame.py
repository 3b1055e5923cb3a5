"""What is around every page: the navigation, what is open, and the choice of a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from stepscope.present._markup import Markup, el
from stepscope.web.bundle import blocks_of
from stepscope.web.page import PageInfo, listed

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["framed", "message", "short"]


_JUMPS = {
    "findings": "f",
    "overview": "v",
    "timeline": "t",
    "operators": "o",
    "modules": "m",
    "source": "l",
    "python": "p",
    "kernels": "k",
    "rooflines": "r",
    "copies_syncs": "s",
    "memory": "y",
    "compile": "c",
    "ranks": "n",
    "compare": "d",
    "what_if": "w",
    "sql": "q",
    "trust": "u",
}
"""Which key after `g` jumps to a page."""


def framed(opened: Opened, name: str, key: str, content: Markup) -> str:
    """A whole page of the window."""
    pages = {one: info for one, info in listed().items() if _fits(info, opened)}
    info = pages.get(name) or listed()[name]
    main = el("main", content, id="content", tabindex="-1", class_="page wide" if info.wide else "page")
    return _document(
        f"{info.title} – {short(opened.name)}",
        el("a", "Skip to the content", href="#content", class_="skip"),
        el("header", _bar(opened, name, key), el("div", id="busy", role="status"), class_="bar"),
        el("nav", *_links(pages, name, key, opened), aria_label="Pages", class_="side"),
        main,
        scripts=("page.js", *blocks_of(content)),
        page=name,
    )


def message(title: str, *content: Markup, scripts: Sequence[str] = ("page.js",)) -> str:
    """A page without navigation: what is still being opened, or went wrong."""
    main = el("main", el("h1", title), *content, class_="page alone", id="content")
    return _document(title, main, scripts=scripts, page="message")


def _document(title: str, *body: Markup, scripts: Sequence[str], page: str) -> str:
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} – stepscope"),
        el("script", Markup(""), src="/static/theme.js"),
        Markup('<link rel="stylesheet" href="/style.css">\n'),
        Markup('<link rel="icon" href="/static/icon.svg">\n'),
        # One script, for a page of forty modules would ask forty times.
        el("script", Markup(""), type="module", src=f"/script.js?{urlencode({'of': ','.join(scripts)})}"),
    )
    return f"<!DOCTYPE html>\n{el('html', head, el('body', *body, data_page=page), lang='en')}"


def _bar(opened: Opened, name: str, key: str) -> Markup:
    """What is open, the ranks to choose from, and what works everywhere."""
    keys = opened.keys
    ranks = None
    if len(keys) > 1:
        options = [el("option", _label(one), value=one, selected=one == key) for one in keys]
        ranks = el("label", "Look at ", el("select", *options, id="trace-choice"), class_="choice")
    return el(
        "div",
        el("a", "stepscope", href=_address("findings", key, opened), class_="brand"),
        el("span", short(opened.name), class_="what", title=opened.name),
        ranks,
        el("span", class_="gap"),
        el(
            "a",
            "Save",
            href=f"/api/save?{urlencode({'page': name, 'trace': key})}",
            download=True,
            id="save-link",
            class_="tool",
            title="This page as one HTML file, to keep or to send",
        ),
        _perfetto(key) if keys else None,
        el("button", "?", type="button", id="help-button", aria_label="Keyboard help"),
        el("button", "◐", type="button", id="theme-button", aria_label="Dark or light"),
        class_="bar-row",
    )


def _perfetto(key: str) -> Markup:
    return el(
        "button",
        "Perfetto",
        type="button",
        id="perfetto-button",
        class_="tool",
        data_trace=key,
        title="Open this trace, or the visible part of the timeline, in the viewer of ui.perfetto.dev",
    )


def _links(pages: dict[str, PageInfo], name: str, key: str, opened: Opened) -> list[Markup]:
    links: list[Markup] = []
    group = None
    for one, info in pages.items():
        if group is not None and info.order // 10 != group:
            links.append(el("hr"))
        group = info.order // 10
        current = "page" if one == name else None
        links.append(
            el(
                "a",
                info.title,
                href=_address(one, key, opened),
                aria_current=current,
                data_jump=_JUMPS.get(one),
            )
        )
    return links


def _fits(info: PageInfo, opened: Opened) -> bool:
    """Whether there is something for a page to show."""
    if not opened.keys and not info.without_profile:
        return False
    if info.about == "run":
        return opened.many is not None
    return info.about != "two" or opened.against is not None


def _address(name: str, key: str, opened: Opened) -> str:
    return f"/{name}" + (f"?{urlencode({'trace': key})}" if len(opened.keys) > 1 else "")


def _label(key: str) -> str:
    return key.replace("rank", "rank ")


def short(name: str) -> str:
    """The last part of a path."""
    return PurePath(name).name or name
