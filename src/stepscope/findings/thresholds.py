"""Thresholds set by the user: `[tool.stepscope.RULE]` in the nearest pyproject.toml, here or above."""

from __future__ import annotations

import difflib
import os
import reprlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.findings import wanted_by
from stepscope.patterns import late_pattern
from stepscope.units import size
from stepscope.writing import protect

__all__ = ["Thresholds", "found_above", "nearest_thresholds", "thresholds_in", "toml_of"]

Thresholds = Mapping[str, Mapping[str, Any]]
"""By rule (with hyphens), the thresholds that replace its defaults."""
_LARGEST = 1 << 20
"""So large a file may be: what a whole project writes down fits many times."""
_DEEPEST = 100
_BETWEEN_KEYS = late_pattern(r"[=\[\]{},#\n]")


def nearest_thresholds(folder: Path) -> Thresholds:
    """Those of the nearest pyproject.toml that has a table `tool.stepscope`; none if there is none."""
    for file in found_above(folder, ["pyproject.toml"]):
        if found := thresholds_in(file):
            return found
    return {}


def found_above(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """The files of these names in a folder and those above it, the nearest first."""
    for place in (folder, *folder.parents):
        for name in names:
            if os.path.isfile(place / name):  # noqa: PTH113 - a folder that we may not look into has none
                yield place / name


def thresholds_in(file: Path) -> Thresholds:
    """Those of a file, checked: each rule must exist and have a threshold of that name and type."""
    tool = toml_of(file).get("tool", {})
    tool = tool.get("stepscope", {}) if isinstance(tool, dict) else {}
    if not isinstance(tool, dict):
        raise StepscopeError(f"{file}: tool.stepscope is not a table", hint="write [tool.stepscope.RULE]")
    # Budgets are not thresholds of a rule; `stepscope check` reads them.
    rules = {name: given for name, given in tool.items() if name != "budgets"}
    for rule, given in rules.items():
        _check(file, rule, given)
    return rules


def toml_of(file: Path) -> dict[str, Any]:
    """The content of a TOML file: of a plain file of a size and depth that people write."""
    import tomllib

    try:
        protect(file)
        if not stat.S_ISREG(file.stat().st_mode):
            raise _unreadable(file, "it is not a file")
        with file.open("rb") as opened:
            raw = opened.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise _unreadable(file, f"it is larger than {size(_LARGEST)}")
        text = raw.decode()
        # Reading a key takes the square of its parts.
        if max(piece.count(".") for piece in _BETWEEN_KEYS.split(text)) > _DEEPEST:
            raise _unreadable(file, "it is nested too deep")
        read: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise _unreadable(file, "it is nested too deep") from None
    except OSError as error:
        raise _unreadable(file, error.strerror or str(error)) from error
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise _unreadable(file, str(error)) from error
    return read


def _unreadable(file: Path, why: str) -> StepscopeError:
    return StepscopeError(f"{file} cannot be read: {why}", hint="fix the file")


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
                f"{file}: {rule}.{name} is {reprlib.repr(value)}", hint=f"give it a value like {own[name]!r}"
            )


def _near(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}"
