"""Which format is chosen, and where its text goes: to the terminal, to a file, to the summary of a job."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError
from stepscope.present.formats import needs_of, rendered

__all__ = ["chosen", "show", "write"]

Format = Callable[..., str]

_DEFAULT = "terminal"
_JOB_SUMMARY = "GITHUB_STEP_SUMMARY"


def chosen(folder: str, name: str | None, output: Path | None) -> Format:
    """The format of that name; without a name the one that the file's ending says, else the terminal's."""
    if name is None and output is not None:
        formats = [registry.load(folder, known) for known, _ in registry.names(folder, installed=True)]
        fitting = [one for one in formats if output.name.endswith(needs_of(one).ending)]
        if fitting:
            return max(fitting, key=lambda one: len(needs_of(one).ending))
    return registry.load(folder, name or _DEFAULT)


def show(folder: str, format: Format, built: Any, output: Path | None = None, *, done: str = "") -> None:
    """Prints the text of a format, or writes it to a file and says so.

    On GitHub, a format that names a job summary also adds that page to the summary of the job.
    """
    interrupts.pass_on()  # what was built while a signal came may lack a part
    width = shutil.get_terminal_size().columns
    if output is None:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(rendered(format, built, width=width, color=color), end="")
    else:
        write(output, rendered(format, built, width=width, color=False))
        print(f"{done}: {output}")
    page, job = needs_of(format).job_summary, os.environ.get(_JOB_SUMMARY)
    if page and job:
        summary = registry.load(folder, page)
        write(Path(job), rendered(summary, built, width=width, color=False), mode="a")


def write(path: Path, text: str, *, mode: Literal["w", "a"] = "w") -> None:
    """Writes a file, or adds to it."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StepscopeError(f"cannot write {path}: {error.strerror}", hint="name another file") from error
