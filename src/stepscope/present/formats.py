"""What a format is: one function that turns a report, a comparison or a check into text.

A format declares what it needs and gets nothing else: the decorator names its file ending and the further
tables it shows, its keyword-only parameters (`width`, `color`) name what it wants to know of the terminal.
It returns text. Where the text goes is not its business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from stepscope.records import dataclass

__all__ = ["Needs", "format", "needs_of", "rendered"]

Format = Callable[..., str]
FormatT = TypeVar("FormatT", bound=Format)

_OPTIONS = ("width", "color")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a format declares about itself."""

    ending: str
    """Of its files, with the dot: `-o report.html` chooses the format with `.html`."""
    tables: tuple[str, ...]
    """Analyses that it shows beside the report itself."""
    job_summary: str
    """The format whose text goes to the summary of a job on GitHub; empty where none does."""
    options: tuple[str, ...]
    """What it wants to know of the terminal: width, color."""


def format(*, ending: str, tables: Sequence[str] = (), job_summary: str = "") -> Callable[[FormatT], FormatT]:
    """Marks a function as a format."""

    def mark(function: FormatT) -> FormatT:
        options = tuple(
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        )
        if unknown := set(options) - set(_OPTIONS):
            raise TypeError(f"{function.__name__}: a format is given width and color, not {unknown.pop()}")
        function.needs = Needs(ending, tuple(tables), job_summary, options)  # type: ignore[attr-defined]
        return function

    return mark


def needs_of(function: Format) -> Needs:
    """What a format declared."""
    needs = getattr(function, "needs", None)
    if not isinstance(needs, Needs):
        raise TypeError(f"{function.__name__} is no format: it lacks the decorator @format")
    return needs


def rendered(function: Format, shown: Any, *, width: int, color: bool) -> str:
    """The text of a format, which is given only the options that it takes."""
    given = {"width": width, "color": color}
    return function(shown, **{name: given[name] for name in needs_of(function).options})
