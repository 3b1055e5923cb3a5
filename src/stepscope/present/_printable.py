"""Names come from files, and files from anybody: what may steer a terminal or a log is shown as its code.

Two fences stand one behind the other. A format makes every name printable where it writes it, so that no name
breaks its line. All text of the command line then passes `guarded`, which nothing goes around: streams and
files are opened behind it. It lets pass what formats of ours do on purpose, and only if they say so by the
type of the text: colours are `Styled`, workflow commands `WorkflowCommands`. Whatever is done to such a text
makes plain text of it, in which neither passes.
"""

from __future__ import annotations

import re

from stepscope.patterns import late_pattern

__all__ = ["Styled", "WorkflowCommands", "codes", "guarded", "printable"]

_ODD = late_pattern("[^\n\t -~]+")
_HIDDEN = late_pattern(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks without a shape, which Python takes for printable."""
_BREAKS = frozenset("\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\u2028\u2029")
"""What begins a new line somewhere; other blanks, as the one that does not break, are harmless."""
_OURS = late_pattern("(\x1b\\[[0-9;]*[mK]|\r)")
"""Colours, and what the progress line needs to take itself away."""
_COMMAND = late_pattern(
    "^((?:[^\\S\n]|\x1b\\[[0-9;]*m)*):(?=:[A-Za-z][^\n]*::)|#(?=#(?:\\[|vso\\[|teamcity\\[))", re.MULTILINE
)
"""What a log of GitHub, Azure or TeamCity takes for a command: `::error::`, `##[error]`, `##vso[`."""


class Styled(str):
    """Text with colours that were put in here, around pieces that were made printable."""

    __slots__ = ()


class WorkflowCommands(str):
    """Lines that are commands to the job that runs us, made by `_workflow.lines`."""

    __slots__ = ()


def codes(text: str) -> str:
    """Every character as its code, as JSON writes it; those of a rare one are its two halves."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def printable(text: str, keep: str = "") -> str:
    """The text without control characters, which steer terminals and turn lines around; `keep` are left."""
    if text.isprintable() and (text.isascii() or not _HIDDEN.search(text)):
        return text
    return "".join(
        sign
        if (sign.isprintable() and not _HIDDEN.match(sign)) or sign in keep
        else sign.encode("unicode_escape").decode("ascii")
        for sign in text
    )


def guarded(text: str, *, begins_line: bool = True) -> str:
    """Text on its way out: only lines, tabs and what can be seen; and no line is a command to a log.

    Codes are those of JSON, so that JSON with any names in it stays JSON and says the same. `begins_line` is
    False for the rest of a line whose beginning is out already.
    """
    if isinstance(text, Styled):
        pieces = _OURS.split(text)
        pieces[::2] = map(_seen, pieces[::2])
        shown = "".join(pieces)
    else:
        shown = _seen(text)
    if isinstance(text, WorkflowCommands) or ("::" not in shown and "##" not in shown):
        return shown
    if begins_line:
        return _COMMAND.sub(_code, shown)
    return _COMMAND.sub(_code, f"-{shown}")[1:]


def _seen(text: str) -> str:
    """Everything but lines and tabs that cannot be seen, as codes."""
    if text.replace("\n", "").replace("\t", "").isprintable() and (
        text.isascii() or not _HIDDEN.search(text)
    ):
        return str(text)
    return _ODD.sub(lambda found: "".join(map(_code_of, found[0])), text)


def _code_of(sign: str) -> str:
    blank = sign.isspace() and sign not in _BREAKS
    return sign if blank or (sign.isprintable() and not _HIDDEN.match(sign)) else codes(sign)


def _code(found: re.Match[str]) -> str:
    return f"{found[1] or ''}{codes(found[0][-1])}"
