"""Stores that are kept between commands: found by the profile's content, the least used go first."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.schema import FORMAT
from stepscope.store.layout import explained, is_store, read_meta, remove
from stepscope.streams import files_in, is_url

__all__ = ["Entry", "clear", "entries", "evict", "folder_for", "limit", "root", "touch"]

_EDGE = 1 << 16
_DAY = 86400
_DEFAULT_LIMIT = "20GB"


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept store."""

    folder: Path
    source: str
    bytes: int
    used: float


def root() -> Path:
    """Where stores are kept: `$STEPSCOPE_CACHE`, or the platform's cache folder."""
    if chosen := os.environ.get("STEPSCOPE_CACHE"):
        return Path(chosen)
    if sys.platform != "darwin" and (place := os.environ.get("XDG_CACHE_HOME")):
        return Path(place) / "stepscope"
    try:
        home = Path.home()
    except RuntimeError:  # a user that the machine does not know, as in many containers
        raise StepscopeError(
            "there is no home folder to keep what was read in",
            hint="choose a folder: --store DIR, or export STEPSCOPE_CACHE=DIR",
        ) from None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "stepscope"


def limit() -> int:
    """How many bytes may be kept: `$STEPSCOPE_CACHE_LIMIT`, by default 20 GB."""
    text = os.environ.get("STEPSCOPE_CACHE_LIMIT", _DEFAULT_LIMIT)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if not found:
        raise StepscopeError(
            f"STEPSCOPE_CACHE_LIMIT={text} is not a size", hint="export STEPSCOPE_CACHE_LIMIT=20GB"
        )
    return int(float(found[1]) * 1000 ** " KMGT".index(found[2].upper() or " "))


def folder_for(source: str, where: Path, also: Sequence[str] = ()) -> Path | None:
    """The store of a profile, and of what was added to it, in a cache folder: its name and a digest of all.

    None where one of them cannot be recognised again, as a pipe.
    """
    digest = hashlib.sha256(f"format {FORMAT}".encode())
    for one in (source, *also):
        version = _url_version(one) if is_url(one) else _version(one)
        if version is None:
            return None
        digest.update(version)
    return where / f"{_plain(source.rstrip('/').rpartition('/')[2])}-{digest.hexdigest()[:16]}"


def _version(source: str) -> bytes | None:
    """What tells a file from its other versions: size, time, head and tail; of a folder, names and times."""
    path = Path(source)
    if source == "-":
        return None
    status = path.stat()
    if path.is_dir():
        files = [(file, file.stat()) for file in files_in(path)]
        return repr([(str(f.relative_to(path)), s.st_size, s.st_mtime_ns) for f, s in files]).encode()
    if not stat.S_ISREG(status.st_mode):
        return None
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_EDGE))
        file.seek(max(0, status.st_size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.digest()


def _url_version(source: str) -> bytes | None:
    """The same for a URL, as far as its file system tells versions apart; None where it does not."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(source)
        info = system.info(path)
    except (OSError, ValueError, ImportError):
        return None  # opening it will say what is wrong
    version = [
        str(info[key]) for key in ("ETag", "etag", "mtime", "LastModified", "created", "sha") if key in info
    ]
    if not version:
        return None
    return hashlib.sha256(f"{source} {info.get('size')} {version}".encode()).digest()


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name.partition(".json")[0])[:60] or "trace"


def touch(folder: Path) -> None:
    """Notes that a store was used."""
    try:
        os.utime(folder)
    except OSError:  # a read-only store is not evicted by us anyway
        return


def entries(where: Path) -> list[Entry]:
    """The stores of a folder, the last used first."""
    found = []
    for folder in _folders(where):
        if not is_store(folder):
            continue
        try:
            size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
            found.append(Entry(folder, _source_of(folder), size, folder.stat().st_mtime))
        except FileNotFoundError:
            continue  # another process is removing it
    return sorted(found, key=lambda entry: -entry.used)


def _folders(where: Path) -> list[Path]:
    try:
        return list(where.iterdir()) if where.is_dir() else []
    except OSError as error:
        raise StepscopeError(
            f"the folder {where} cannot be listed: {error.strerror}", hint=f"check it: ls -ld {where}"
        ) from error


def _source_of(folder: Path) -> str:
    try:
        return read_meta(folder).source
    except StepscopeError:
        return "(another format)"


def evict(where: Path, keep: Path) -> list[Entry]:
    """Removes the least used stores beyond the limit, and what killed runs left a day ago."""
    for partial in where.glob(".*.partial"):
        try:
            age = time.time() - partial.stat().st_mtime
        except FileNotFoundError:
            continue  # another process is done with it
        if age > _DAY:
            shutil.rmtree(partial, ignore_errors=True)
    # The store just made stays, and counts first.
    removed, total, most = [], 0, limit()
    for entry in sorted(entries(where), key=lambda entry: entry.folder != keep):
        total += entry.bytes
        if total > most and entry.folder != keep:
            with explained("making room", entry.folder):
                remove(entry.folder)
            removed.append(entry)
    return removed


def clear(where: Path) -> list[Entry]:
    """Removes every store of a folder; other files stay."""
    removed = entries(where)
    for entry in removed:
        with explained("clearing", entry.folder):
            remove(entry.folder)
    for partial in where.glob(".*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    return removed
