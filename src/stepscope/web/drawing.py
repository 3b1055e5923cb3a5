"""Draws the content of a page, for the window and for a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.web.page import PAGES, Request, about_page

if TYPE_CHECKING:
    from stepscope.present._markup import Markup
    from stepscope.web.opened import Opened

__all__ = ["drawn"]


def drawn(opened: Opened, name: str, options: Mapping[str, str]) -> tuple[Request, Markup]:
    """What a page is asked, and its content."""
    draw = registry.load(PAGES, name)
    about = about_page(draw).about
    if about == "two" and opened.against is None:
        raise StepscopeError("two traces are compared", hint="stepscope open AFTER --against BEFORE")
    if about == "run" and opened.many is None:
        raise StepscopeError("this page is about a run of several ranks", hint="stepscope open RUN_FOLDER")
    rest = dict(options)
    wanted = rest.pop("trace", None)
    request = Request(opened, opened.trace(wanted) if opened.keys else None, rest)
    content: Markup = draw(request)
    return request, content
