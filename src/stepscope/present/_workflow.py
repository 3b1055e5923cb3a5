"""Workflow commands: how a job on GitHub annotates itself or a line of code."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.findings import Location
from stepscope.present._printable import WorkflowCommands, printable

__all__ = ["command", "lines"]

_IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


def command(level: str, title: str, message: str, place: Location | None = None) -> str:
    """One workflow command: an annotation of the job, or of a line of code."""
    properties = [f"title={_escaped(title, _IN_PROPERTIES)}"]
    if place:
        properties = [f"file={_escaped(place.file, _IN_PROPERTIES)}", f"line={place.line}", *properties]
    return f"::{level} {','.join(properties)}::{_escaped(message, _IN_MESSAGES)}"


def lines(commands: Iterable[str]) -> WorkflowCommands:
    """Commands one below the other: the only text whose lines a job may take for commands."""
    return WorkflowCommands("".join(f"{one}\n" for one in commands))


def _escaped(said: str, signs: dict[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in printable(said, keep="\r\n"))
