"""Stores that are kept between commands: found by the profile's content, the least used go first."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import FORMAT
from stepscope.store import leftovers
from stepscope.store.layout import META, explained, is_store, read_meta, remove
from stepscope.store.sums import DamagedStore
from stepscope.streams import files_in, is_url

__all__ = [
    "Entry",
    "clear",
    "entries",
    "evict",
    "folder_for",
    "left_behind",
    "limit",
    "plain",
    "root",
    "size_of_url",
    "stamps",
    "touch",
    "versions",
]

WHOLE_BYTES = 4 << 20
"""Profiles up to this size are recognised by all of their bytes, larger ones by as many: some ms."""
_PIECE = 1 << 16
_PIECES = 64
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


def versions(words: Sequence[str]) -> list[str] | None:
    """What tells each of some profiles from its other versions; None where one has nothing, as a pipe."""
    found = [_url_version(word) if is_url(word) else _version(word) for word in words]
    return None if None in found else [one.hex() for one in found if one]


def folder_for(source: str, where: Path, known: Sequence[str] | None) -> Path | None:
    """The store of a profile in a cache folder, by the versions of it and of what was added to it."""
    if known is None:
        return None
    digest = hashlib.sha256(f"format {FORMAT} {' '.join(known)}".encode())
    return where / f"{plain(source.rstrip('/').rpartition('/')[2])}-{digest.hexdigest()[:16]}"


def stamps(words: Sequence[str]) -> list[object]:
    """The sizes and times of profiles, which tell at little cost whether one was written to meanwhile."""
    found: list[object] = []
    for path in map(Path, words):
        try:
            status = path.stat()
        except (OSError, ValueError):  # a URL, or standard input
            continue
        found.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def _version(source: str) -> bytes | None:
    """What tells a file or folder from its other versions.

    A small one is its bytes, wherever it lies. Of a large one pieces are compared, and its times: no program
    can set the time of the last change (ctime), which every writing and renaming sets.
    """
    path = Path(source)
    if source == "-" or not (path.is_file() or path.is_dir()):  # a pipe, or a device
        return None
    files = [(file, file.stat()) for file in files_in(path)] if path.is_dir() else [(path, path.stat())]
    small = sum(status.st_size for _, status in files) <= WHOLE_BYTES
    digest = hashlib.sha256()
    for file, status in files:
        digest.update(f"{file.relative_to(path)} {status.st_size}\n".encode(errors="surrogateescape"))
        if not small:
            digest.update(f"{status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
        try:
            digest.update(
                hashlib.sha256(file.read_bytes()).digest() if small else _pieces(file, status.st_size)
            )
        except OSError:
            return None  # opening it will say what is wrong
    return digest.digest()


def _pieces(file: Path, size: int) -> bytes:
    """A digest of pieces of a file, from its beginning to its end at equal distances."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        for number in range(_PIECES):
            opened.seek(max(size - _PIECE, 0) * number // (_PIECES - 1))
            digest.update(opened.read(_PIECE))
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


def size_of_url(source: str) -> int | None:
    """How many bytes lie at a URL; None if its file system does not tell."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(source)
        size = system.info(path).get("size")
    except (OSError, ValueError, ImportError):
        return None
    return int(size) if size is not None else None


def plain(name: str) -> str:
    """A name of a profile or run as the name of a folder begins with it."""
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
        if folder.name.startswith(".") or not is_store(folder):
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
    except DamagedStore as damage:
        return f"(damaged: {damage.file})"
    except StepscopeError:
        return _run_of(folder) or "(another format)"


def _run_of(folder: Path) -> str:
    """What a run is called whose own store that is; empty for anything else."""
    try:
        told = json.loads((folder / META).read_bytes())
        return str(told["source"]) if str(told["format"]).startswith("run ") else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def left_behind(where: Path) -> list[Entry]:
    """What killed runs left in a folder of stores and in the folder for temporary files."""
    found = []
    for folder in (*leftovers.abandoned(where), *leftovers.abandoned_scratch()):
        try:
            used = folder.stat().st_mtime
        except FileNotFoundError:
            continue  # another process is removing it
        found.append(Entry(folder, "left by a run that was killed", leftovers.size_of(folder), used))
    return found


def evict(where: Path, keep: Path) -> list[Entry]:
    """Removes the least used stores beyond the limit."""
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
    """Removes every store of a folder and what killed runs left; other files stay."""
    removed = entries(where)
    for entry in removed:
        with explained("clearing", entry.folder):
            remove(entry.folder)
    leftovers.sweep(where)
    return removed
