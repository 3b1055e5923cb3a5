"""Elements of a page, in which text is escaped unless it was made here."""

from __future__ import annotations

import html
from collections.abc import Iterable

from stepscope.present._printable import printable

__all__ = ["Markup", "el", "joined", "lines", "shortened"]

_VOID = frozenset({"meta"})
_INLINE = frozenset({"a", "button", "code", "dt", "em", "span", "strong", "td", "th"})
"""A line ends behind all others, so that pages can be read and compared."""


class Markup(str):
    """Text that is markup already. Whatever is done to it makes plain text, which is escaped again."""

    __slots__ = ()


def el(name: str, /, *children: str | None, **attributes: str | float | bool | None) -> Markup:
    """An element; `class_` and `aria_label` are written as `class` and `aria-label`.

    Children and values that are not markup are escaped. An attribute that is None or False is left out.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    end = "" if name in _INLINE else "\n"
    if name in _VOID:
        return Markup(f"<{name}{given}>{end}")
    inside = "".join(_child(child) for child in children if child is not None)
    return Markup(f"<{name}{given}>{inside}</{name}>{end}")


def joined(parts: Iterable[str | None]) -> Markup:
    """Parts of a page one after the other; those that are no markup are escaped."""
    return Markup("".join(_child(part) for part in parts if part is not None))


def lines(text: str) -> Markup:
    """Text of several lines, for what is shown as it is written."""
    return Markup(html.escape(printable(text, "\n\t"), quote=False))


def shortened(text: str, most: int) -> str:
    """The text with its middle left out: kernels differ at both ends of their names."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def _child(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(printable(child), quote=False)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = html.escape(printable(str(value)))
    return f' {name}="{text}"'
