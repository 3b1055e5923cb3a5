"""Thresholds set by the user: `[tool.stepscope.RULE]` in the nearest pyproject.toml, here or above."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.findings import wanted_by

__all__ = ["Thresholds", "nearest_thresholds", "thresholds_in", "toml_of"]

Thresholds = Mapping[str, Mapping[str, Any]]
"""By rule (with hyphens), the thresholds that replace its defaults."""


def nearest_thresholds(folder: Path) -> Thresholds:
    """Those of the nearest pyproject.toml that has a table `tool.stepscope`; none if there is none."""
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file() and (found := thresholds_in(file)):
            return found
    return {}


def thresholds_in(file: Path) -> Thresholds:
    """Those of a file, checked: each rule must exist and have a threshold of that name and type."""
    tool = toml_of(file).get("tool", {}).get("stepscope", {})
    if not isinstance(tool, dict):
        raise StepscopeError(f"{file}: tool.stepscope is not a table", hint="write [tool.stepscope.RULE]")
    # Budgets are not thresholds of a rule; `stepscope check` reads them.
    rules = {name: given for name, given in tool.items() if name != "budgets"}
    for rule, given in rules.items():
        _check(file, rule, given)
    return rules


def toml_of(file: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        read: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StepscopeError(f"{file} cannot be read: {error}", hint="fix the file") from error
    return read


def _check(file: Path, rule: str, given: Any) -> None:
    rules = {name.replace("_", "-"): name for name, _ in registry.names("findings.rules", installed=True)}
    if rule not in rules:
        raise StepscopeError(f"{file}: there is no rule {rule!r}", hint=_near(rule, list(rules)))
    if not isinstance(given, dict):
        raise StepscopeError(f"{file}: {rule} is not a table", hint=f"write [tool.stepscope.{rule}]")
    _, own = wanted_by(registry.load("findings.rules", rules[rule]))
    for name, value in given.items():
        if name not in own:
            raise StepscopeError(
                f"{file}: the rule {rule} has no threshold {name!r}", hint=_near(name, list(own))
            )
        kind = (int, float) if isinstance(own[name], float) else type(own[name])
        if isinstance(value, bool) != isinstance(own[name], bool) or not isinstance(value, kind):
            raise StepscopeError(
                f"{file}: {rule}.{name} is {value!r}", hint=f"give it a value like {own[name]!r}"
            )


def _near(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}"
