"""Lines of a terminal: styled, broken where they are too long, printed with colours or without."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from stepscope.present._printable import printable

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["broken", "fitted", "printed", "styled", "unbroken", "wrapped"]

_NO_BREAK = "\u00a0"
_UNITS = re.compile(r"(\d) (%|[nµm]?s|[KMGT]iB|min|h)(?!\w)")
"""A number and its unit stay on one line."""
_WIDEST = 118


def fitted(width: int) -> int:
    """How many columns are used of so many."""
    return min(max(width, 60), _WIDEST)


def printed(lines: Iterable[Text], *, color: bool) -> str:
    """The lines as text."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=1000,  # lines are broken here, not by rich
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for line in lines:
        console.print(line, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def styled(*pieces: tuple[str, str] | str) -> Text:
    """A line of text; pieces may have a style."""
    from rich.text import Text

    plain = ((piece, "") if isinstance(piece, str) else piece for piece in pieces)
    return Text.assemble(*((printable(piece), style) for piece, style in plain))


def wrapped(said: str, width: int, *, indent: int = 0, first: str = "", style: str = "") -> Iterator[Text]:
    """A paragraph; `first` stands in the margin of its first line."""
    margins = {"initial_indent": first.ljust(indent), "subsequent_indent": " " * indent}
    for line in broken(said, width, **margins):
        yield styled((line, style))


def unbroken(said: str) -> str:
    """A piece of a line that stays together."""
    return said.replace(" ", _NO_BREAK)


def broken(said: str, width: int, **margins: str) -> list[str]:
    """A text in lines, a number and its unit together; long words are not broken."""
    lines = textwrap.wrap(
        _UNITS.sub(f"\\1{_NO_BREAK}\\2", printable(said, keep=_NO_BREAK)),
        width,
        initial_indent=margins.get("initial_indent", ""),
        subsequent_indent=margins.get("subsequent_indent", ""),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
