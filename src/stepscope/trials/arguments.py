"""What `--set` changes: a variable of the environment, or an argument of the program."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.errors import StepscopeError

__all__ = ["settings_of"]


def settings_of(given: Sequence[str], words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a program with arguments replaced or added, and the variables that are set.

    `--lr=0.1` and `-b=8` are arguments, as is `lr=0.1` where the program has an argument `lr=…`; any other
    `NAME=VALUE` is a variable of the environment.
    """
    changed, variables = list(words), dict[str, str]()
    for one in given:
        name, equals, value = one.partition("=")
        if name.startswith("-") and name.strip("-"):
            changed = _with_argument(changed, name, value if equals else None)
        elif not equals or not name:
            raise StepscopeError(
                f"--set {one} has no value", hint="--set NAME=VALUE, or --set --batch-size=64", exit_code=2
            )
        elif any(word.startswith(f"{name}=") for word in changed):
            changed = [one if word.startswith(f"{name}=") else word for word in changed]
        else:
            variables[name] = value
    return changed, variables


def _with_argument(words: Sequence[str], name: str, value: str | None) -> list[str]:
    """The words with an argument in place of the one of that name, or at the end."""
    for at, word in enumerate(words):
        if word.startswith(f"{name}="):
            return [*words[:at], name if value is None else f"{name}={value}", *words[at + 1 :]]
        if word == name:
            if value is None:
                return list(words)
            has_value = at + 1 < len(words) and not _is_option(words[at + 1])
            return [*words[: at + 1], value, *words[at + 1 + has_value :]]
    if value is None:
        return [*words, name]
    return [*words, f"{name}={value}"] if name.startswith("--") else [*words, name, value]


def _is_option(word: str) -> bool:
    """Whether a word begins an argument: a number below zero does not."""
    if not word.startswith("-") or word == "-":
        return False
    try:
        float(word)
    except ValueError:
        return True
    return False
