"""Says what a finding, a table or a word of the report means."""

from __future__ import annotations

import difflib
import inspect
from typing import Annotated, cast

from stepscope import registry
from stepscope.cli import output
from stepscope.errors import StepscopeError
from stepscope.glossary import WORDS

__all__ = ["explain"]

_RULES = ("findings.rules", "runs.rules")
_ANALYSES = ("analyses", "runs.analyses")


def explain(
    name: Annotated[tuple[str, ...], "a finding, an analysis or a word; without one, all are listed"] = (),
) -> None:
    """Prints what a finding means and how to fix it, the columns of an analysis, or a definition.

    stepscope explain launch-bound prints the page of a finding. stepscope explain idle_gaps prints what the
    columns of an analysis mean. stepscope explain starved prints the definition of a word.
    """
    from stepscope.present import pages

    asked = " ".join(name)
    page = _explained(asked) if asked else _everything()
    output.put(pages.text(page, width=output.width(), color=output.color()))


def _explained(asked: str) -> str:
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


def _everything() -> str:
    from stepscope.findings import Category, Rule

    found: dict[Category, list[str]] = {category: [] for category in Category}
    for folder in _RULES:
        for name, first_line in registry.names(folder, installed=True):
            rule = cast("Rule", registry.load(folder, name))
            found[rule.category].append(f"- `{name.replace('_', '-')}`: {first_line}")
    parts = ["# Findings"]
    for category, lines in found.items():
        parts += [f"## {category.value.capitalize()}", "\n".join(lines)] if lines else []
    parts += ["# Words", ", ".join(f"`{word}`" for word in WORDS)]
    parts += ["# Analyses", ", ".join(f"`{name}`" for name in _names(_ANALYSES))]
    return "\n\n".join(parts) + "\n"
