"""Where text goes: to the terminal, to a file, to the summary of a job. Nothing else in here prints."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError
from stepscope.present._printable import guarded, printable
from stepscope.writing import check_apart, explained, same_file, written

__all__ = [
    "binary",
    "check",
    "chosen",
    "color",
    "is_terminal",
    "notice",
    "put",
    "say",
    "show",
    "to_standard_error",
    "width",
    "write",
]

Format = Callable[..., str]

_DEFAULT = "terminal"
_JOB_SUMMARY = "GITHUB_STEP_SUMMARY"
_STREAMS = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Names of standard output."""
_STORE = ("meta.json", "names.arrow")
"""What every store has, and hardly any other folder."""


def say(line: str) -> None:
    """Prints a line; a name in it cannot make two of it."""
    print(printable(line))


def notice(line: str) -> None:
    """Prints a line to standard error: what is no part of the answer."""
    print(printable(line), file=sys.stderr)


def to_standard_error() -> contextlib.AbstractContextManager[object]:
    """What is printed meanwhile goes to standard error: the output is that of a program of the user's."""
    return contextlib.redirect_stdout(sys.stderr)


def put(text: str) -> None:
    """Prints a text of many lines, whose maker has made its names printable."""
    sys.stdout.write(text)


def binary() -> IO[bytes]:
    """Standard output for what is not text."""
    return sys.stdout.buffer


def is_terminal() -> bool:
    """Whether somebody looks at standard output."""
    return sys.stdout.isatty()


def width() -> int:
    """How many columns the terminal has."""
    return shutil.get_terminal_size().columns


def color() -> bool:
    """Whether standard output is to have colours: NO_COLOR wins, then FORCE_COLOR, then what it is."""
    if os.environ.get("NO_COLOR"):
        return False
    if forced := os.environ.get("FORCE_COLOR"):
        return forced.lower() not in ("0", "false")
    return is_terminal() and os.environ.get("TERM") != "dumb"


def chosen(folder: str, name: str | None, output: Path | None) -> Format:
    """The format of that name; without a name the one that the file's ending says, else the terminal's."""
    from stepscope.present.formats import needs_of

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
    from stepscope.present.formats import needs_of, rendered

    interrupts.pass_on()  # what was built while a signal came may lack a part
    if output is None or str(output) in _STREAMS:
        put(rendered(format, built, width=width(), color=color()))
    else:
        write(output, rendered(format, built, width=width(), color=False))
        say(f"{done}: {output}")
    page, job = needs_of(format).job_summary, os.environ.get(_JOB_SUMMARY)
    if page and job:
        summary = registry.load(folder, page)
        write(Path(job), rendered(summary, built, width=width(), color=False), adding=True)


def write(path: Path, text: str, *, adding: bool = False) -> None:
    """Writes a file, or adds to it."""
    with written(path, adding=adding) as file:
        file.write(guarded(text).encode())


def check(output: str | Path, words: Iterable[object]) -> None:
    """Refuses, before anything is read, an output that is an input, lies in a store or has no folder.

    `words` are all other values of the command line, for each of them may name an input. What is found out
    only later, as what lies in a folder, is refused when the file is to be written.
    """
    path = Path(output)
    if str(output) in _STREAMS:
        return
    with explained(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "")
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "")
    for word in words:
        for named in (str(word), *str(word).split(",")):
            if same_file(path, Path(named.strip())):
                raise StepscopeError(
                    f"{output} is an input of this command and is not written over",
                    hint="choose another name",
                )
    check_apart(path)
    _check_place(path)


def _check_place(path: Path) -> None:
    from stepscope.store import cache

    try:
        kept = cache.root()
    except StepscopeError:  # no place for a cache, so nothing in it
        kept = None
    for above in path.resolve().parents:
        if kept and same_file(above, kept):
            raise StepscopeError(
                f"{path} is in the cache, {kept}, which holds stores only", hint="choose another folder"
            )
        if all(os.path.isfile(above / name) for name in _STORE):  # noqa: PTH113 - or not ours to look into
            raise StepscopeError(f"{path} is inside {above}, which is a store", hint="choose another folder")
