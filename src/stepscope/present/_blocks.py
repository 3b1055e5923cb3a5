"""Parts of a page that a script makes lively: their data, and what is shown without a script."""

from __future__ import annotations

import json
from typing import Any

from stepscope.present._markup import Markup, el

__all__ = ["block", "inert"]


def block(kind: str, data: Any, *shown: str | None, label: str) -> Markup:
    """What `blocks/KIND.js` draws from its data; `shown` stands there until it has."""
    return el(
        "div",
        el("script", inert(data), type="application/json"),
        *shown,
        class_=f"block {kind}",
        data_block=kind,
        role="group",
        aria_label=label,
    )


def inert(data: Any) -> Markup:
    """JSON that no browser takes for markup, whatever the names in it are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
