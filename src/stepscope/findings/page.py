"""The page of a finding: what it means, how its gain is computed, how to fix it, when to ignore it."""

from __future__ import annotations

import inspect
from pathlib import Path

from stepscope import registry

__all__ = ["PAGES", "page_of"]

PAGES = Path(__file__).parent / "pages"


def page_of(rule_id: str) -> str:
    """The page as Markdown; a rule of another package has its docstring."""
    page = PAGES / f"{rule_id}.md"
    if page.exists():
        return page.read_text(encoding="utf-8")
    name = rule_id.replace("-", "_")
    of_runs = name in dict(registry.names("runs.rules", installed=True))
    rule = registry.load("runs.rules" if of_runs else "findings.rules", name)
    return f"# {rule_id}\n\n{inspect.getdoc(rule) or ''}\n"
