"""Lines of a terminal: styled, broken where they are too long, printed with colours or without."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from stepscope.patterns import late_pattern
from stepscope.present._printable import Styled, printable

__all__ = ["Line", "broken", "fitted", "printed", "styled", "unbroken", "wrapped"]

Line = tuple[tuple[str, str], ...]
"""The pieces of a line, each with its style: `bold white on red`."""

_NO_BREAK = "\u00a0"
_UNITS = late_pattern(r"(\d) (%|[nµm]?s|[KMGT]iB|min|h)(?!\w)")
"""A number and its unit stay on one line."""
_WIDEST = 118
_COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_CODES = {"bold": 1, "bright_black": 90, **{color: 30 + number for number, color in enumerate(_COLORS)}}


def fitted(width: int) -> int:
    """How many columns are used of so many."""
    return min(max(width, 60), _WIDEST)


def printed(lines: Iterable[Line], *, color: bool) -> Styled:
    """The lines as text; their pieces were made printable by `styled`."""
    shown = ("".join(_colored(*piece) if color else piece[0] for piece in line) for line in lines)
    return Styled("".join(f"{line.rstrip()}\n" for line in shown))


def _colored(text: str, style: str) -> str:
    """A piece with the codes of the 16 colors that every terminal has around it."""
    if not (text and style):
        return text
    front, _, back = style.partition(" on ")
    codes = [_CODES[word] for word in front.split()] + [_CODES[word] + 10 for word in back.split()]
    return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"


def styled(*pieces: tuple[str, str] | str) -> Line:
    """A line of text; pieces may have a style."""
    plain = ((piece, "") if isinstance(piece, str) else piece for piece in pieces)
    return tuple((printable(piece), style) for piece, style in plain)


def wrapped(said: str, width: int, *, indent: int = 0, first: str = "", style: str = "") -> Iterator[Line]:
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
