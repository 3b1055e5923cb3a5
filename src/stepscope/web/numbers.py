"""Whole numbers in what a script asks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.errors import StepscopeError

__all__ = ["whole", "wholes"]

_WHOLE = re.compile(r"-?\d{1,18}")


def whole(given: Mapping[str, str], name: str, default: int | None = None, least: int = -(2**62)) -> int:
    """A whole number by its name; an error without one, unless there is a default."""
    text = given.get(name)
    if text is None and default is not None:
        return default
    if text is None or not _WHOLE.fullmatch(text) or int(text) < least:
        raise StepscopeError(f"{name} is no whole number: {text!r}", hint=f"{name}=0")
    return int(text)


def wholes(given: Mapping[str, str], name: str) -> list[int] | None:
    """Whole numbers with commas between; None where nothing is said."""
    text = given.get(name, "")
    if not text:
        return None
    return [whole({name: one}, name) for one in text.split(",")[:10_000]]
