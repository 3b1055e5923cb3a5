"""A page of HTML with its style and its script, which needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib

from stepscope.present._markup import Markup, el
from stepscope.present._style import SCRIPT, STYLE

__all__ = ["document"]


def document(title: str, header: Markup, main: Markup) -> str:
    """A page with its style and its script."""
    body = el("body", header, main, el("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{el('html', _meta(title), body, lang='en')}"


def _meta(source: str) -> Markup:
    # Whatever a name may hold, the page loads nothing and runs no script but its own.
    seal = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{seal}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{source} – stepscope"),
        el("style", Markup(STYLE)),
    )
