"""A page of Markdown as markup: headings, paragraphs, lists, code, and links between our own pages.

That is all that the pages of findings use. Whatever else is in a text stays text: the docstring of a rule of
another package is no markup of ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from stepscope.patterns import late_pattern
from stepscope.present._markup import Markup, el, joined
from stepscope.present._pieces import code

__all__ = ["prose"]

_HEADING = late_pattern(r"(#{1,4}) +(.+)")
_ITEM = late_pattern(r"(?:[-*]|\d+\.) +(.+)")
_FENCE = "```"
_INLINE = late_pattern(
    r"(?P<ticks>`+)(?P<code>.+?)(?P=ticks)"
    r"|\*\*(?P<strong>[^*\n]+)\*\*"
    r"|(?<![\w*])\*(?P<em>[^*\s](?:[^*\n]*[^*\s])?)\*(?![\w*])"
    r"|\[(?P<text>[^\]\n]+)\]\((?P<to>[\w./#-]+\.md)[^)\n]*\)"
)
Link = Callable[[str], str]
"""The address of another page, by its name."""


def prose(markdown: str, link: Link, *, above: int = 1) -> Markup:
    """The page; its headings begin below the heading that stands over it, of level `above`."""
    return joined(_blocks(markdown.splitlines(), link, above))


def _blocks(given: list[str], link: Link, above: int) -> Iterator[Markup]:
    lines = [*given, ""]
    place = 0
    while place < len(lines):
        line = lines[place]
        if line.startswith(_FENCE):
            end = next((i for i in range(place + 1, len(lines)) if lines[i].startswith(_FENCE)), len(lines))
            yield code("\n".join(lines[place + 1 : end]), "this code")
            place = end + 1
        elif heading := _HEADING.fullmatch(line.rstrip()):
            level = min(6, len(heading[1]) + above)
            yield el(f"h{level}", _inline(heading[2], link))
            place += 1
        elif _ITEM.match(line):
            items, place = _items(lines, place)
            yield el("ul", *(el("li", _inline(item, link)) for item in items))
        elif line.strip():
            end = next(i for i in range(place, len(lines)) if i > place and _ends_paragraph(lines[i]))
            yield el("p", _inline(" ".join(one.strip() for one in lines[place:end]), link))
            place = end
        else:
            place += 1


def _ends_paragraph(line: str) -> bool:
    return not line.strip() or line.startswith(_FENCE) or bool(_HEADING.match(line) or _ITEM.match(line))


def _items(lines: list[str], place: int) -> tuple[list[str], int]:
    """The items of a list, each with the lines that go on below it, and where the list ends."""
    found: list[str] = []
    while item := _ITEM.match(lines[place]):
        words = [item[1].strip()]
        place += 1
        while lines[place].startswith(" ") and lines[place].strip():
            words.append(lines[place].strip())
            place += 1
        found.append(" ".join(words))
    return found, place


def _inline(text: str, link: Link) -> Markup:
    pieces: list[str] = []
    end = 0
    for found in _INLINE.finditer(text):
        pieces += [text[end : found.start()], _marked(found, link)]
        end = found.end()
    return joined([*pieces, text[end:]])


def _marked(found: re.Match[str], link: Link) -> Markup:
    if found["code"]:
        return el("code", found["code"].strip() if len(found["ticks"]) > 1 else found["code"])
    if found["strong"]:
        return el("strong", _inline(found["strong"], link))
    if found["em"]:
        return el("em", found["em"])
    name = found["to"].rpartition("/")[2].removesuffix(".md")
    return el("a", found["text"], href=link(name))
