"""Writes the reference pages from the code: `python -m stepscope.reference` fills docs/reference.

Nothing there is written by hand. The pages show what the code declares about views, columns, analyses,
findings and commands, so a page that is wrong is fixed in the code.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from stepscope import registry
from stepscope.analyses import row_of
from stepscope.cli.signature import Argument, arguments
from stepscope.findings import Category, Rule, wanted_by
from stepscope.glossary import WORDS
from stepscope.schema import DERIVED, DICTIONARIES, FORMAT, SIDE, STORED, StoredTable
from stepscope.store.views import VIEWS
from stepscope.tables import columns_of

__all__ = ["pages", "write"]

_MADE = "<!-- Written by `make docs` from the code. Do not edit. -->"
_WIDTH = 96


def pages() -> dict[str, str]:
    """Every reference page by its file name."""
    return {
        "views.md": _views(),
        "stored-tables.md": _stored_tables(),
        "analyses.md": _analyses(),
        "findings.md": _findings(),
        "commands.md": _commands(),
        "glossary.md": _glossary(),
    }


def write(folder: Path) -> None:
    """Writes every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def _page(title: str, lead: str, sections: Iterable[str]) -> str:
    return "\n\n".join([_MADE, f"# {title}", lead, *sections]) + "\n"


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _code(name: str) -> str:
    return f"`{name}`" if name else ""


def _views() -> str:
    lead = (
        "What `stepscope query` and every analysis read: names in place of numbers, times since the epoch.\n"
        "`stepscope query --schema` prints the same. The tables below the views are in "
        "[stored tables](stored-tables.md);\nin SQL they are `stored.NAME`."
    )
    sections = []
    for view in VIEWS:
        rows = [(_code(name), description) for name, _, description in view.columns]
        sections.append(f"## {view.name}\n\n{view.description}\n\n{_grid(('column', 'meaning'), rows)}")
    return _page("Views", lead, sections)


_IF_FILLED = "There if a source filled it."


def _stored_tables() -> str:
    lead = (
        f"The files of a store, format {FORMAT}. Large tables are Parquet, small ones Arrow IPC. *From* is\n"
        "the member of an event that fills a column; a column that says *found* is worked out when the\n"
        "whole profile has been read. Times count from the trace's base time, which `meta.json` holds.\n"
        "These tables may change with the format: build on the [views](views.md)."
    )
    derived = [
        replace(table, description=f"{table.description} Made at first use.")
        for making in DERIVED
        for table in making.tables
    ]
    sections = [_stored(table, "parquet") for table in STORED]
    sections += [
        _stored_columns(table, "parquet", [(column, "") for column in table.columns])
        for table in (replace(one, description=f"{one.description} {_IF_FILLED}") for one in SIDE)
    ]
    sections += [
        _stored_columns(table, "parquet", [(column, "") for column in table.columns]) for table in derived
    ]
    sections += [
        _stored_columns(table, "arrow", [(column, "") for column in table.columns]) for table in DICTIONARIES
    ]
    return _page("Stored tables", lead, sections)


def _stored(table: StoredTable, ending: str) -> str:
    columns = [
        (column, "found" if column in table.linked else f"`{column.key}`" if column.key else "")
        for column in table.all_columns
    ]
    return _stored_columns(table, ending, columns)


def _stored_columns(table: StoredTable, ending: str, columns: Iterable[tuple[Any, str]]) -> str:
    takes = ""
    if table.categories:
        categories = ", ".join(map(_code, table.categories))
        takes = f" Takes events of phase `{table.phase}` in the categories {categories}."
    elif table.phases:
        takes = f" Takes events of the phases {', '.join(map(_code, table.phases))}."
    rows = [(_code(column.name), column.type, origin, column.description) for column, origin in columns]
    grid = _grid(("column", "type", "from", "meaning"), rows)
    return f"## {table.name}.{ending}\n\n{table.description}{takes}\n\n{grid}"


def _analyses() -> str:
    lead = (
        "Each answers one question: `stepscope show NAME TRACE`, or in Python `NAME(stepscope.open(TRACE))`\n"
        "with `from stepscope.analyses.NAME import NAME`. `--format json` and `csv` give the columns below,\n"
        "unrounded. A type with `?` may be absent (NULL, `null`, `None`)."
    )
    sections = [_analysis("analyses", name) for name, _ in registry.names("analyses")]
    of_runs = [_analysis("runs.analyses", name) for name, _ in registry.names("runs.analyses")]
    return _page("Analyses", lead, [*sections, f"# Of runs\n\n{_OF_RUNS}", *of_runs])


_OF_RUNS = (
    "These look at all ranks of a run: `stepscope show NAME RUN`. RUN is the folder of a run, a folder or\n"
    "pattern of profiles, or a prefix of URLs. Every analysis above does so, too, with `--rank all`. Times\n"
    "are on the clock of the reference rank."
)


def _analysis(folder: str, name: str) -> str:
    function = registry.load(folder, name)
    reads = [f"`{view}`" for view in getattr(function, "reads", {})]
    rows = [
        (_code(column.name), column.type + "?" * column.nullable, column.description)
        for column in columns_of(row_of(function))
    ]
    parts = [f"## {name}", inspect.getdoc(function) or ""]
    parts += [f"Reads {', '.join(reads)}."] if reads else []
    if options := arguments(function, options_only=True):
        parts.append(_argument_grid(options))
    return "\n\n".join([*parts, _grid(("column", "type", "meaning"), rows)])


_GIVEN = ("mean_step", "facts", "run_step", "run_facts")


def _findings() -> str:
    lead = (
        "What `stepscope report` can find, one rule each. `stepscope explain RULE` prints the page of a\n"
        "finding: what it means, how its gain is computed, how to fix it and when to ignore it. A finding\n"
        "that gives way to another is left out if the other is found. Set thresholds in `pyproject.toml`:\n\n"
        "```text\n[tool.stepscope.dataloader-waits]\nfinding_share = 0.2\n```"
    )
    head = ("id", "what it finds", "looks at", "thresholds", "gives way to")
    rows: dict[Category, list[Sequence[str]]] = {category: [] for category in Category}
    listed = [(folder, *one) for folder in ("findings.rules", "runs.rules") for one in registry.names(folder)]
    for folder, name, first_line in listed:
        rule = cast("Rule", registry.load(folder, name))
        tables, thresholds = wanted_by(rule)
        set_to = ", ".join(f"`{threshold} = {value}`" for threshold, value in thresholds.items())
        read = ", ".join(_code(table) for table in tables if table not in _GIVEN)
        better = ", ".join(map(_finding_page, rule.yields_to))
        rows[rule.category].append((_finding_page(name), first_line, read, set_to, better))
    return _page("Findings", lead, [f"## {one.value}\n\n{_grid(head, rows[one])}" for one in Category])


def _finding_page(rule: str) -> str:
    rule_id = rule.replace("_", "-")
    return f"[{rule_id}](../../src/stepscope/findings/pages/{rule_id}.md)"


def _commands() -> str:
    lead = (
        "`stepscope COMMAND --help` prints the same. Exit codes: 0 fine, 1 an error you can fix, 2 wrong\n"
        "usage, 3 a check failed. A TRACE is a path, `-` for standard input, a URL (needs the extra\n"
        "`remote`), a folder with one trace in it, or a store."
    )
    return _page("Commands", lead, [_command(name) for name, _ in registry.names("cli.commands")])


def _command(name: str) -> str:
    command = registry.load("cli.commands", name)
    first_line, _, rest = (inspect.getdoc(command) or "").partition("\n")
    taken = arguments(command)
    parts = [f"## {name}", first_line, f"```text\n{_usage(name, taken)}\n```", _argument_grid(taken)]
    if rest.strip():
        parts.append(f"```text\n{rest.strip()}\n```")
    for one in taken:
        if one.folder:
            grid = _grid(
                (one.name.removeprefix("--"), "what it writes"),
                ((_code(known), line) for known, line in registry.names(one.folder)),
            )
            parts.append(grid)
    return "\n\n".join(parts)


def _glossary() -> str:
    lead = (
        "The words of a report and of the tables, in the order in which they build on one another.\n"
        "`stepscope explain WORD` prints the same."
    )
    return _page("Glossary", lead, [f"## {word}\n\n{meaning}" for word, meaning in WORDS.items()])


def _usage(name: str, taken: Iterable[Argument]) -> str:
    """One line of usage, wrapped; written here because argparse writes it differently on each Python."""
    words = [f"usage: stepscope {name}"]
    for argument in sorted(taken, key=lambda one: not one.positional):
        written = f"{argument.short or argument.name} {argument.value}".strip()
        words.append(written if argument.required else f"[{written}]")
    # Blanks inside an argument do not break.
    text = " ".join(word.replace(" ", "\0") for word in words)
    indent = " " * len(f"usage: stepscope {name} ")
    lines = textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines).replace("\0", " ")


def _argument_grid(taken: Iterable[Argument]) -> str:
    rows = []
    for one in taken:
        names = [f"{name} {one.value}".strip() for name in (one.short, one.name) if name]
        shown = "" if one.default is None or isinstance(one.default, bool) else _code(str(one.default))
        rows.append((", ".join(map(_code, names)), "required" if one.required else shown, one.help))
    return _grid(("argument", "default", "meaning"), rows)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
