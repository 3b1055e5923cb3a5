"""What a finding, a table or a word of the report means, as a page of Markdown."""

from __future__ import annotations

import difflib
import inspect
from typing import cast

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.glossary import WORDS

__all__ = ["everything", "explanation", "listed"]

_RULES = ("findings.rules", "runs.rules")
_ANALYSES = ("analyses", "runs.analyses")


def explanation(asked: str) -> str:
    """The page of a finding, the columns of an analysis, or the definition of a word."""
    from stepscope.findings.page import page_of

    rules = [known.replace("_", "-") for known in _names(_RULES)]
    analyses = _names(_ANALYSES)
    if asked.replace("_", "-") in rules:
        return page_of(asked.replace("_", "-"))
    if asked.replace("-", "_") in analyses:
        name = asked.replace("-", "_")
        return _analysis(analyses[name], name)
    if asked.lower() in WORDS:
        return f"# {asked.lower()}\n\n{WORDS[asked.lower()]}\n"
    close = difflib.get_close_matches(asked, [*rules, *analyses, *WORDS], n=1)
    hint = f"did you mean {close[0]}?" if close else "`stepscope explain` lists all names"
    raise StepscopeError(f"nothing is named {asked!r}", hint=hint, exit_code=2)


def _names(folders: tuple[str, ...]) -> dict[str, str]:
    """The plug-ins of some folders by name, each with its folder."""
    found = {name: folder for folder in folders for name, _ in registry.names(folder, installed=True)}
    return dict(sorted(found.items()))


def _analysis(folder: str, name: str) -> str:
    from stepscope.analyses import row_of
    from stepscope.tables import columns_of

    analysis = registry.load(folder, name)
    columns = [
        f"- `{column.name}` ({column.type}{' or absent' if column.nullable else ''}): {column.description}"
        for column in columns_of(row_of(analysis))
    ]
    parts = [f"# {name}", inspect.getdoc(analysis) or "", "## Columns", "\n".join(columns)]
    return (
        "\n\n".join(
            [*parts, f"```text\nstepscope show {name} {'TRACE' if folder == 'analyses' else 'RUN'}\n```"]
        )
        + "\n"
    )


def everything() -> str:
    """The names of all that can be explained."""
    parts = ["# Findings"]
    for category, names in _findings().items():
        parts += [f"## {category}", "\n".join(f"- `{name}`: {line}" for name, line in names)]
    parts += ["# Words", ", ".join(f"`{word}`" for word in WORDS)]
    parts += ["# Analyses", ", ".join(f"`{name}`" for name in _names(_ANALYSES))]
    return "\n\n".join(parts) + "\n"


def listed() -> dict[str, list[tuple[str, str]]]:
    """All that can be explained, by what it is about: its name and its first line."""
    analyses = {name: line for folder in _ANALYSES for name, line in registry.names(folder, installed=True)}
    return {
        **{f"Findings: {category.lower()}": names for category, names in _findings().items()},
        "Words": list(WORDS.items()),
        "Analyses": sorted(analyses.items()),
    }


def _findings() -> dict[str, list[tuple[str, str]]]:
    """All findings by their category, in words."""
    from stepscope.findings import Category, Rule

    found: dict[Category, list[tuple[str, str]]] = {category: [] for category in Category}
    for folder in _RULES:
        for name, first_line in registry.names(folder, installed=True):
            rule = cast("Rule", registry.load(folder, name))
            found[rule.category].append((name.replace("_", "-"), first_line))
    return {category.value.capitalize(): names for category, names in found.items() if names}
