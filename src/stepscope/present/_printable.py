"""Names come from files, and files from anybody."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, keep: str = "") -> str:
    """The text without control characters, which steer terminals and turn lines around; `keep` are left."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in keep else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )
