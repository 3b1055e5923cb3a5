"""Where the parts of a store lie, how one comes into being, and what is said when that fails."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.schema import FORMAT
from stepscope.store.meta import TraceMeta

__all__ = ["build", "check_place", "explained", "is_store", "locked", "read_meta", "remove", "write_meta"]

META = "meta.json"


def is_store(folder: Path) -> bool:
    """Whether a finished store lies there."""
    try:
        return (folder / META).is_file()
    except OSError:  # not ours to look into, or no name that a file can have
        return False


def check_place(folder: Path) -> None:
    """Refuses a folder whose path the database would take for a pattern, and so find other files with it."""
    if not (place := str(folder.resolve())).isascii() and place != place.encode(errors="replace").decode():
        raise StepscopeError(
            f"a store cannot be in {folder}: its path is not UTF-8",
            hint="choose another folder: --store DIR, or set STEPSCOPE_CACHE",
        )
    if found := re.search(r"[*?\[]", place):
        raise StepscopeError(
            f"a store cannot be in {folder}: its path contains a {found[0]}",
            hint="choose another folder: --store DIR, or set STEPSCOPE_CACHE",
        )


def write_meta(folder: Path, meta: TraceMeta) -> None:
    """The last file of a store: where it is, the store is whole."""
    # In codes: a file's name may hold bytes that are no text.
    text = json.dumps(meta.as_json(), indent=1)
    (folder / META).write_text(text + "\n", encoding="utf-8")


def read_meta(folder: Path) -> TraceMeta:
    """What the store says of itself; an error for what is no store or one of another format."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StepscopeError(
            f"{folder} is not a stepscope store",
            hint="stepscope ingest TRACE --store DIR makes one",
        ) from None
    except (ValueError, OSError) as error:
        raise _unreadable(folder, error) from error
    found = meta.get("format") if isinstance(meta, dict) else None
    if found != FORMAT:
        raise StepscopeError(
            f"the store {folder} has format {found}, this stepscope reads format {FORMAT}",
            hint="ingest the profile again, into another folder",
        )
    try:
        return TraceMeta.of_json(meta)
    except (KeyError, TypeError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> StepscopeError:
    return StepscopeError(
        f"the store {folder} cannot be read: {error}", hint=f"remove it and ingest again: rm -r {folder}"
    )


@contextmanager
def explained(doing: str, folder: Path) -> Iterator[None]:
    """Says what a failing disk means and what to do, instead of a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(folder)).free
            raise StepscopeError(
                f"{doing}: the disk of {folder} is full ({free:,} bytes free); no partial store was left",
                hint="free some space (stepscope cache --clear), or choose a disk: --store DIR",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StepscopeError(
                f"{doing}: no permission to write {folder}",
                hint="choose a folder you may write: --store DIR, or set STEPSCOPE_CACHE",
            ) from error
        if error.errno == errno.EFBIG:
            raise StepscopeError(
                f"{doing}: a file of {folder} would be larger than is allowed; no partial store was left",
                hint="allow larger files (ulimit -f unlimited), or choose another disk: --store DIR",
            ) from error
        raise StepscopeError(
            f"{doing} in {folder} failed: {error.strerror or error}",
            hint="choose another folder: --store DIR",
        ) from error


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def build(target: Path, make: Callable[[Path], None], *, replace: bool = False) -> None:
    """Makes a folder aside and renames it: a killed run leaves no half store, two at once do not collide."""
    with explained("making the store", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            make(partial)
            if replace:
                remove(target)  # only now: a failed reading leaves the old store
            _put_in_place(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if is_store(target):
            # Another process finished the same store first; both hold the same.
            shutil.rmtree(partial, ignore_errors=True)
            return
        if not target.is_dir():
            raise
        remove(target)  # the rest of a store that someone began to delete
        partial.rename(target)


def remove(folder: Path) -> None:
    """Takes a store away at once and then deletes it: whoever looks sees all of it or nothing."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return  # another process was faster
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time in; the lock goes with the process, however it ends."""
    import fcntl

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
