"""Where the parts of a store lie, how one comes into being, and what is said when that fails."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.schema import FORMAT
from stepscope.store.leftovers import REMOVED, disown, owned_folder
from stepscope.store.meta import TraceMeta
from stepscope.store.sums import SUMS, DamagedStore, StoreFiles, read_sums, sum_of, write_sums

__all__ = [
    "build",
    "check_place",
    "explained",
    "is_store",
    "locked",
    "put_file",
    "read_meta",
    "remove",
    "restore",
    "seal",
    "write_meta",
]

META = "meta.json"
_SUMMED = (".parquet", ".arrow")


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
    """The last file of a store, after the checksums of all: where it is, the store is whole."""
    # In codes: a file's name may hold bytes that are no text.
    text = json.dumps(meta.as_json(), indent=1)
    aside = folder / f".{META}"
    aside.write_text(text + "\n", encoding="utf-8")
    sums = {file.name: sum_of(file) for file in folder.iterdir() if file.suffix in _SUMMED}
    write_sums(folder / SUMS, {**sums, META: sum_of(aside)})
    aside.rename(folder / META)


def read_meta(folder: Path) -> TraceMeta:
    """What the store says of itself; an error for what is no store or one of another format."""
    try:
        raw = (folder / META).read_bytes()
        meta = json.loads(raw)
    except FileNotFoundError:
        raise StepscopeError(
            f"{folder} is not a stepscope store",
            hint="stepscope ingest TRACE --store DIR makes one",
        ) from None
    except (ValueError, OSError) as error:
        raise DamagedStore(folder, META, f"cannot be read: {error}") from error
    found = meta.get("format") if isinstance(meta, dict) else None
    if (folder / SUMS).exists():  # stores of earlier formats have none
        StoreFiles(folder).read(META)
    if found != FORMAT:
        raise StepscopeError(
            f"the store {folder} has format {found}, this stepscope reads format {FORMAT}",
            hint="ingest the profile again, into another folder",
        )
    try:
        return TraceMeta.of_json(meta)
    except (KeyError, TypeError) as error:
        raise DamagedStore(folder, META, f"cannot be read: {error}") from error


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
        with owned_folder(target.name, target.parent) as partial:
            make(partial)
            seal(partial.iterdir())
            if replace:
                remove(target)  # only now: a failed reading leaves the old store
            _put_in_place(partial, target)


def restore(target: Path, make: Callable[[Path], None]) -> None:
    """Makes a damaged store again. What is open stays of use: the same files come in place of the old ones.

    Where the files come out otherwise, as with another version of a library, the whole store is replaced.
    """
    with explained("making the store again", target), owned_folder(target.name, target.parent) as partial:
        make(partial)
        seal(partial.iterdir())
        if not _same_tables(target, partial):
            remove(target)
            _put_in_place(partial, target)
            return
        for file in partial.iterdir():
            if file.suffix in _SUMMED:
                file.replace(target / file.name)


def _same_tables(old: Path, new: Path) -> bool:
    """Whether two stores were written with the same tables, and what the old one says of itself is whole."""
    try:
        sums, fresh = read_sums(old / SUMS), read_sums(new / SUMS)
        if not sums or not fresh or sums.pop(META) != sum_of(old / META):
            return False
        if any((old / name).is_dir() for name in sums):  # which a file cannot replace
            return False
    except OSError:
        return False
    fresh.pop(META)
    return sums == fresh


def put_file(place: Path, content: bytes) -> None:
    """Puts a small file into a finished store, whole: it can be made again, and its reader checks it."""
    aside = place.with_name(f".{place.name}.{os.urandom(4).hex()}.partial")
    try:
        aside.write_bytes(content)
        aside.replace(place)
    finally:
        aside.unlink(missing_ok=True)


def seal(files: Iterable[Path]) -> None:
    """Takes the right to write from finished files, as a sign to people and programs."""
    for file in files:
        if not file.name.startswith("."):
            file.chmod(file.stat().st_mode & 0o444)


def _put_in_place(partial: Path, target: Path) -> None:
    disown(partial)
    try:
        partial.rename(target)
    except OSError:
        if is_store(target):
            return  # another process finished the same store first; both hold the same
        if not target.is_dir():
            raise
        remove(target)  # the rest of a store that someone began to delete
        partial.rename(target)


def remove(folder: Path) -> None:
    """Takes a store away at once and then deletes it: whoever looks sees all of it or nothing."""
    aside = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}{REMOVED}")
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
