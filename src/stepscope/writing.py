"""The one place that opens files for writing what a user asked for: never one that is being read.

Whoever opens an input says so (`protect`), so that the list of inputs is complete whatever a command was
given: a folder, a pattern, a store, a budget file. An output is written aside, in the folder where it
belongs, and renamed when it is whole. Who looks sees the old file or the new one, and a failure leaves the
old one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stepscope.errors import StepscopeError

__all__ = ["check_apart", "explained", "one_command", "protect", "same_file", "written"]


class _Inputs:
    """What one command reads."""

    def __init__(self) -> None:
        self.files: set[Path] = set()
        self.folders: set[Path] = set()
        self.handles: set[tuple[int, int]] = set()


_HANDLE = re.compile(r"/dev/(?:fd/(\d+)|(stdin|stdout|stderr))|/proc/self/fd/(\d+)")
_STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}
_NOT_BESIDE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Why no file can be made in a folder; one that is there may be open to us all the same."""


_inputs: list[_Inputs] = []
"""Of the command that runs. A program that uses stepscope reads and writes files as it likes."""


@contextmanager
def one_command() -> Iterator[None]:
    """What is read from here on is not written over until the end."""
    _inputs.append(_Inputs())
    try:
        yield
    finally:
        _inputs.pop()


def protect(read: Path | int) -> None:
    """Notes that a file, a folder with all in it, or a file handle is read and not to be written to."""
    if not _inputs:
        return
    noted = _inputs[-1]
    with contextlib.suppress(OSError, ValueError):  # what is not there needs no protection
        if isinstance(read, int):
            status = os.fstat(read)
            if stat.S_ISREG(status.st_mode):
                noted.handles.add((status.st_dev, status.st_ino))
                _check_standard_output(status, "a file")
            return
        path = read.absolute()
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            noted.folders.add(path)
        elif stat.S_ISREG(status.st_mode):
            noted.files.add(path)
            _check_standard_output(status, str(read))


def _check_standard_output(read: os.stat_result, name: str) -> None:
    """Refuses `>> trace.json`, with which the answer would become part of the question."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(1), read):
            raise StepscopeError(
                f"standard output goes to {name}, which is read", hint="send it to another file: > FILE"
            )


def same_file(one: Path, other: Path) -> bool:
    """Whether two names mean one file, by whatever links; what is not there is no file."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def check_apart(path: Path) -> None:
    """Refuses to write what is read: a file under any of its names, and all that lies in a folder."""
    if not _inputs:
        return
    noted, read = _inputs[-1], False
    with contextlib.suppress(OSError, ValueError):
        status = path.stat()
        read = (status.st_dev, status.st_ino) in noted.handles
    if read or any(same_file(path, one) for one in noted.files):
        raise StepscopeError(
            f"{path} is an input of this command and is not written over", hint="choose another name"
        )
    for above in path.resolve().parents:
        if any(same_file(above, folder) for folder in noted.folders):
            raise StepscopeError(
                f"{path} is inside {above}, which this command reads", hint="choose another folder"
            )


@contextmanager
def written(path: Path, *, adding: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, there when everything is written; or one at whose end is written.

    Devices, pipes and handles of this process (/dev/stdout) are written to directly.
    """
    with explained(path):
        check_apart(path)
        found = _HANDLE.fullmatch(str(path))
        if found:
            handle = _STANDARD.get(found[2] or "", int(found[1] or found[3] or 0))
            with os.fdopen(os.dup(handle), "wb") as file:
                yield file
            return
        target = path.resolve()
        if adding or (os.path.lexists(target) and not target.is_file()):
            with target.open("ab" if adding else "wb") as file:
                yield file
            return
        yield from _aside(target)


def _aside(target: Path) -> Iterator[IO[bytes]]:
    """The file beside its place, which it takes at the end; a file that may not be written to stays."""
    before = target.stat() if target.exists() else None
    if before and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    partial = target.with_name(f".stepscope-{os.urandom(6).hex()}.partial")
    try:
        # With the rights that the user's umask gives, not those of a temporary file.
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if before is None or error.errno not in _NOT_BESIDE:
            raise
        with target.open("wb") as file:
            yield file
        return
    try:
        with os.fdopen(handle, "wb") as file:
            if before:
                os.fchmod(handle, stat.S_IMODE(before.st_mode))
                with contextlib.suppress(OSError):  # to keep the owner is for the administrator
                    os.fchown(handle, before.st_uid, before.st_gid)
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Says what a failing disk means, in a line."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has seen enough
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            reason, hint = f"the folder {path.parent} does not exist", f"mkdir -p {path.parent}"
        elif error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, hint = "the disk is full", "free some space, or name a file on another disk"
        elif error.errno == errno.EISDIR:
            reason, hint = "it is a folder", f"name a file in it: {path / 'FILE'}"
        else:
            reason, hint = error.strerror or str(error), "name another file"
        raise StepscopeError(f"cannot write {path}: {reason}", hint=hint) from error
