"""Where the parts of a store lie, how one comes into being, and what is said when that fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.schema import FORMAT

__all__ = ["build", "explained", "is_store", "locked", "read_meta", "write_meta"]

META = "meta.json"


def is_store(folder: Path) -> bool:
    """Whether a finished store lies there."""
    return (folder / META).is_file()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """The last file of a store: where it is, the store is whole."""
    text = json.dumps({"format": FORMAT, **meta}, indent=1, ensure_ascii=False)
    (folder / META).write_text(text + "\n", encoding="utf-8")


def read_meta(folder: Path) -> dict[str, Any]:
    """What the store says of itself; an error for what is no store or one of another format."""
    try:
        meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StepscopeError(
            f"{folder} is not a stepscope store",
            hint="stepscope ingest TRACE --store DIR makes one",
        ) from None
    except (ValueError, OSError) as error:
        raise StepscopeError(
            f"the store {folder} cannot be read: {error}",
            hint=f"remove it and ingest again: rm -r {folder}",
        ) from error
    if meta.get("format") != FORMAT:
        raise StepscopeError(
            f"the store {folder} has format {meta.get('format')}, this stepscope reads format {FORMAT}",
            hint="ingest the profile again, into another folder",
        )
    return meta


@contextmanager
def explained(doing: str, folder: Path) -> Iterator[None]:
    """Says what a failing disk means and what to do, instead of a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(folder)).free
            raise StepscopeError(
                f"{doing}: the disk of {folder} is full ({free:,} bytes free); nothing half-made was left",
                hint="free some space (stepscope cache --clear), or choose a disk: --store DIR",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StepscopeError(
                f"{doing}: no permission to write {folder}",
                hint="choose a folder you may write: --store DIR, or set STEPSCOPE_CACHE",
            ) from error
        raise


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def build(target: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder aside and renames it: a killed run leaves no half store, two at once do not collide."""
    with explained("making the store", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        try:
            make(partial)
            try:
                partial.rename(target)
            except OSError:
                if not is_store(target):
                    raise
                # Another process finished the same store first; both hold the same.
                shutil.rmtree(partial, ignore_errors=True)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


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
