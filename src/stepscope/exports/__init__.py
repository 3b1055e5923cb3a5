"""Formats of other tools, one file each: what stepscope knows of a trace, for them to show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["Export", "ending_of", "export"]

Export = Callable[..., Iterator[bytes]]
"""From a trace to the bytes of a file, piece by piece."""
ExportT = TypeVar("ExportT", bound=Export)


def export(*, ending: str) -> Callable[[ExportT], ExportT]:
    """Marks a function as an export; `-o x.speedscope.json` chooses the one with `.speedscope.json`."""

    def mark(function: ExportT) -> ExportT:
        function.ending = ending  # type: ignore[attr-defined]
        return function

    return mark


def ending_of(function: Callable[..., Any]) -> str:
    """The ending of its files, with the dot."""
    ending = getattr(function, "ending", None)
    if not isinstance(ending, str):
        name = getattr(function, "__name__", str(function))
        raise TypeError(f"{name} is no export: it lacks the decorator @export")
    return ending
