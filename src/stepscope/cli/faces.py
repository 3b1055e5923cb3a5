"""Where a face goes: to the terminal, to a file, or to a job on GitHub."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stepscope.errors import StepscopeError

__all__ = ["on_github", "show", "write"]


def show(text: Callable[[int, bool], str], output: Path | None, done: str) -> None:
    """Prints the text (of a width, with colours or not), or writes it to a file and says what is done."""
    width = shutil.get_terminal_size().columns
    if output is None:
        print(text(width, sys.stdout.isatty() and "NO_COLOR" not in os.environ), end="")
    else:
        write(output, text(width, False))
        print(f"{done}: {output}")


def on_github(page: str, commands: str, output: Path | None) -> None:
    """Adds a page to the summary of the job, and prints its annotations."""
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    target = output or (Path(named) if named else None)
    if target is not None:
        write(target, page, mode="a")
    print(commands, end="")


def write(path: Path, text: str, *, mode: Literal["w", "a"] = "w") -> None:
    """Writes a file, or adds to it."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StepscopeError(
            f"{path} cannot be written: {error.strerror}", hint="name another file"
        ) from error
