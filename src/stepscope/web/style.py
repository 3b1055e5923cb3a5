"""The sheet of the window: that of the report, and the frame around its pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from stepscope.present._style import STYLE

__all__ = ["sheet"]

_STATIC = Path(__file__).parent / "static"


@cache
def sheet() -> str:
    """One sheet for all pages: colours and pieces of the report, then what only the window has."""
    own = sorted(_STATIC.rglob("*.css"))
    return "\n".join([STYLE, *(file.read_text(encoding="utf-8") for file in own)])
