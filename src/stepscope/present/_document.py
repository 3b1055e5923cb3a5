"""A page of HTML with its style and its script, which needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib

from stepscope.present._markup import Markup, el
from stepscope.present._style import SCRIPT, STYLE

__all__ = ["document", "head", "seal"]


def document(title: str, header: Markup, main: Markup) -> str:
    """A page with its style and its script."""
    policy = f"style-src 'unsafe-inline'; script-src {seal(SCRIPT)}"
    body = el("body", header, main, el("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{el('html', head(title, policy, el('style', Markup(STYLE))), body, lang='en')}"


def head(title: str, policy: str, *more: Markup) -> Markup:
    """The head of a page in a file; `policy` says which styles and scripts are its own."""
    # Whatever a name may hold, the page loads nothing and runs no script but its own.
    policy = f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'"
    return el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("title", f"{title} – stepscope"),
        *more,
    )


def seal(text: str) -> str:
    """How a policy names a style or a script: by its checksum."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
