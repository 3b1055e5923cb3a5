"""A page of Markdown in the terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from stepscope.patterns import late_pattern
from stepscope.present._lines import fitted
from stepscope.present._printable import Styled, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

__all__ = ["text"]

_LINK = late_pattern(r"\[([^\]]+)\]\([^)]+\.md[^)]*\)")
"""A link to another page: its text is a name that `stepscope explain` takes."""


def text(markdown: str, *, width: int, color: bool) -> Styled:
    """The page as lines of that width; code is indented and not broken, for it is to be copied."""
    from rich.console import Console
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class LeftHeading(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield Text(str(self.text), style="bold underline" if self.tag == "h1" else "bold")

    class PlainCode(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for line in str(self.text).rstrip().splitlines():
                yield Text(f"    {line}", style="green", no_wrap=True, overflow="ignore")

    class Page(Markdown):
        elements = {**Markdown.elements, "heading_open": LeftHeading, "fence": PlainCode}  # noqa: RUF012

    file = io.StringIO()
    console = Console(
        file=file,
        width=fitted(width),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
    )
    shown = printable(_LINK.sub(r"\1", markdown), keep="\n\t")
    console.print(Page(shown, hyperlinks=False), crop=False)
    return Styled("".join(f"{line.rstrip()}\n" for line in file.getvalue().strip("\n").splitlines()))
