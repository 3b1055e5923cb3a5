"""Files of the user's own code that a trace names, where this machine has them.

A trace may come from anybody, and an address from any page. So a file is opened only if the trace names it as
code of the user, ends in .py and is a plain file of bearable size; an address only says which of these.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.tables import Table

__all__ = ["MOST_BYTES", "Function", "Source", "named_files", "read_source"]

MOST_BYTES = 2_000_000
_MOST_LINES = 20_000
_INDENT = re.compile(r"[ \t]*")
_DEF = re.compile(r"\s*(async\s+def|def|class|@|.*\blambda\b)")
_DECORATED = 30
"""A function begins at its first decorator; so many lines may be before its name."""


@dataclass(frozen=True, slots=True)
class Function:
    """What one function of a file took."""

    name: str
    line: int
    host_ns: int
    idle_ns: int
    device_ns: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file with what its functions took."""

    lines: tuple[str, ...]
    ends: dict[int, int]
    """By the line that a function begins on: the last line of it."""
    moved: tuple[str, ...]
    """Functions that are not on the line that the profile names: the file has changed since."""


def named_files(lines: Table[Any]) -> dict[str, list[Function]]:
    """The files that a trace names as code of the user, the most expensive first, with their functions."""
    found: dict[str, list[Function]] = {}
    for row in lines:
        if row.file and row.line is not None:
            one = Function(row.function or "", row.line, row.host_ns, row.idle_ns, row.device_ns)
            found.setdefault(row.file, []).append(one)
    cost = {name: sum(one.idle_ns + one.device_ns for one in functions) for name, functions in found.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: (-cost[name], name))}


def read_source(name: str, functions: list[Function], folders: tuple[Path, ...]) -> Source | None:
    """A file that a trace names; None if this machine does not have it, or it is none to show."""
    text = next(filter(None, (_read(path) for path in _places(name, folders))), None)
    if text is None:
        return None
    lines = tuple(text.splitlines()[:_MOST_LINES])
    moved = tuple(one.name for one in functions if not _is_there(lines, one))
    ends = {one.line: _end(lines, one.line) for one in functions if one.line <= len(lines)}
    return Source(lines, ends, moved)


def _places(name: str, folders: tuple[Path, ...]) -> list[Path]:
    """Where a file may be: at its path, or below the folders in which people work."""
    # Two slashes at the start are another machine to Windows, which would be asked for the file.
    if not name.endswith(".py") or "\0" in name or name.startswith(("//", "\\\\")):
        return []
    path = Path(name)
    if path.is_absolute():
        return [path]
    return [] if ".." in path.parts else [folder / path for folder in folders]


def _read(path: Path) -> str | None:
    # A pipe would wait for ever; what it is, is asked of the file that is open, not of its name.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError):
        return None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(MOST_BYTES).decode("utf-8", "replace")


def _is_there(lines: tuple[str, ...], one: Function) -> bool:
    if not 1 <= one.line <= len(lines):
        return False
    if one.name.startswith("<"):
        return True
    short = one.name.rpartition(".")[2]
    near = lines[one.line - 1 : one.line - 1 + _DECORATED]
    return bool(_DEF.match(near[0])) and any(re.search(rf"\b{re.escape(short)}\b", line) for line in near)


def _end(lines: tuple[str, ...], first: int) -> int:
    """The last line of a function: what is further in than its head."""
    if not first <= len(lines):
        return first
    depth = len(_INDENT.match(lines[first - 1])[0].expandtabs())  # type: ignore[index]
    last, begun = first, False
    for number in range(first + 1, len(lines) + 1):
        line = lines[number - 1]
        if not line.strip():
            continue
        deep = len(_INDENT.match(line)[0].expandtabs())  # type: ignore[index]
        # The head may be of several lines: decorators, arguments below one another.
        if deep <= depth and begun and not line.lstrip().startswith((")", "]")):
            break
        begun = begun or deep > depth
        if deep <= depth and not begun and number > first + _DECORATED:
            break
        last = number
    return last
