"""Words of the report that link to their definitions, which are part of the page."""

from __future__ import annotations

import re

from stepscope.glossary import WORDS
from stepscope.patterns import late_pattern
from stepscope.present._markup import Markup, el, joined

__all__ = ["linked", "words"]

_LINKED = late_pattern(r"\b(unprofiled|exposed|starved|drained|idle|gain|certainty)\b", re.IGNORECASE)
"""Words that a reader may not know; those that everybody knows are defined, but not linked."""


def linked(text: str) -> Markup:
    """A text in which the first use of each such word leads to its definition."""
    seen: set[str] = set()
    pieces: list[str] = []
    end = 0
    for found in _LINKED.finditer(text):
        word = found[0].lower()
        if word not in seen:
            seen.add(word)
            pieces += [text[end : found.start()], el("a", found[0], href=f"#{_anchor(word)}", class_="word")]
            end = found.end()
    return joined([*pieces, text[end:]])


def words() -> Markup:
    """All definitions."""
    told = [
        one
        for word, meaning in WORDS.items()
        for one in (el("dt", word, id=_anchor(word)), el("dd", _with_code(meaning)))
    ]
    listed = el("dl", *told, class_="panel words")
    return el("section", el("h2", "Words"), listed, id="words")


def _with_code(meaning: str) -> Markup:
    """Every second piece between back-ticks is code."""
    pieces = meaning.split("`")
    return joined(el("code", piece) if place % 2 else piece for place, piece in enumerate(pieces))


def _anchor(word: str) -> str:
    return f"word-{word.replace(' ', '-')}"
