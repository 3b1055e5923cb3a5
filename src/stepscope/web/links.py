"""Addresses of pages of this window."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["link"]


def link(opened: Opened, page: str, trace: str = "", /, **options: str | int | None) -> str:
    """The address of a page about a trace, by its key; an option that is None is left out."""
    given = {"trace": trace if len(opened.keys) > 1 else None, **options}
    told = urlencode({name: value for name, value in given.items() if value not in (None, "")})
    return f"/{page}?{told}" if told else f"/{page}"
