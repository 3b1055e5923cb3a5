"""What notebooks show of our values: whoever can draw them says so here, for they live in lower layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["InNotebook", "draw_with"]

_drawers: list[Callable[[Any], str]] = []


def draw_with(drawer: Callable[[Any], str]) -> None:
    """Values are drawn by this from now on."""
    _drawers[:] = [drawer]


class InNotebook:
    """A value that a notebook shows as HTML; as its text where nobody can draw it."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        """What a notebook shows."""
        return _drawers[0](self) if _drawers else None
