"""Pieces of Markdown, in which names from a profile are no markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from stepscope.present._printable import printable

if TYPE_CHECKING:
    from stepscope.findings.report import NextStep

__all__ = ["code", "code_block", "escaped", "next_steps", "rows"]


def escaped(said: str) -> str:
    """Text in which nothing is markup: names in a profile are anybody's."""
    one_line = printable(" ".join(said.split()))
    for sign in "\\`*_[]<>|#":
        one_line = one_line.replace(
            sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign]
        )
    return one_line


def code(said: str) -> str:
    """A name or a short piece of code inside a line."""
    one_line = printable(" ".join(said.split())).replace("|", "\\|")
    fence = "`" * (1 + _longest_ticks(one_line))
    padding = " " if fence != "`" else ""
    return f"{fence}{padding}{one_line}{padding}{fence}"


def code_block(said: str) -> Iterator[str]:
    """Several lines of code."""
    fence = "`" * max(3, 1 + _longest_ticks(said))
    yield f"{fence}text"
    yield printable(said, keep="\n\t")
    yield fence


def next_steps(steps: Sequence[NextStep]) -> Iterator[str]:
    """What to do next, numbered, under a heading; nothing where there is nothing to do."""
    if steps:
        yield "## Next steps"
        yield ""
        for place, step in enumerate(steps, 1):
            command = f" {code(step.command)}" if step.command else ""
            yield f"{place}. {escaped(step.text)}{command}"


def _longest_ticks(said: str) -> int:
    """How many back-ticks follow one another in a text, at most."""
    return max(map(len, re.findall("`+", said)), default=0)


def rows(heads: Iterable[str], lines: Iterable[Iterable[str]], right: int = 0) -> Iterator[str]:
    """A table; its last `right` columns hold numbers. Cells are Markdown already."""
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join('---' if place < len(names) - right else '---:' for place in range(len(names)))}|"
    for line in lines:
        yield f"| {' | '.join(line)} |"
