"""Folders that a run needs while it lasts, and what killed runs left of theirs.

Whoever makes such a folder holds a lock on a file in it, which goes with the process, however it ends. So a
folder whose lock can be had belongs to nobody. Locks are believed on the machine that made them; what another
machine made on a shared disk, or what has no lock, counts as left when nothing in it changed for a day.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from stepscope.patterns import late_pattern

__all__ = [
    "abandoned",
    "abandoned_scratch",
    "disown",
    "owned_folder",
    "scratch",
    "size_of",
    "spill_folder",
    "sweep",
]

OWNER = ".owner"
PARTIAL, REMOVED = ".partial", ".removed"
_DAY = 86400
_SCRATCH = late_pattern(r"stepscope-[0-9a-f]{12}")
_SPILL = late_pattern(r"stepscope-spill-[0-9a-f]{12}")
"""What releases before this one left; it has no lock."""


@cache
def _machine() -> bytes:
    """What tells this machine, since it was started, from others: its locks are those that we can test."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return f"stepscope {os.uname().nodename} {boot}\n".encode()


def _claimed(prefix: str, suffix: str, place: Path) -> tuple[Path, int | None]:
    """A new folder and the handle of its lock, None where the disk has no locks."""
    # Under its name it is seen with its lock only: nobody can take it for left.
    name = os.urandom(6).hex()
    hidden, folder = place / f".{name}.new{suffix}", place / f"{prefix}{name}{suffix}"
    hidden.mkdir(mode=0o700)
    try:
        handle = _locked_owner(hidden)
        hidden.rename(folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return folder, handle


def _locked_owner(folder: Path) -> int | None:
    handle = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, _machine())
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        (folder / OWNER).unlink()
        return None
    return handle


@contextmanager
def owned_folder(name: str, place: Path) -> Iterator[Path]:
    """A folder in which something is made that will then be moved; what is still there at the end goes."""
    folder, handle = _claimed(f".{name}.", PARTIAL, place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def disown(folder: Path) -> None:
    """Takes the mark of the owner away from what is finished."""
    (folder / OWNER).unlink(missing_ok=True)


_scratch: dict[tuple[int, str], Path] = {}


_making = threading.Lock()


def scratch() -> Path:
    """The folder of this process for temporary files, in `$TMPDIR`; it goes when the process ends."""
    place = tempfile.gettempdir()
    here = (os.getpid(), place)  # a forked child gets its own
    with _making:
        if here not in _scratch or not _scratch[here].is_dir():  # some machines tidy up by age
            _scratch[here], _ = _claimed("stepscope-", "", Path(place))
            atexit.register(_drop_scratch, _scratch[here], os.getpid())
        return _scratch[here]


def spill_folder() -> Path:
    """A name for what does not fit in memory; the folder is made by who needs it, which few do."""
    name = f"spill-{os.urandom(6).hex()}"
    try:
        return scratch() / name
    except OSError:  # no room for a folder: most questions need none
        return Path(tempfile.gettempdir()) / f"stepscope-{name}"


def _drop_scratch(folder: Path, owner: int) -> None:
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def abandoned(where: Path) -> list[Path]:
    """What killed runs left in a folder of stores."""
    found = []
    for folder in _subfolders(where):
        ours = folder.name.startswith(".") and folder.suffix in (PARTIAL, REMOVED)
        # What was being removed is nobody's.
        if ours and (folder.suffix == REMOVED or _is_left(folder)):
            found.append(folder)
    return found


def abandoned_scratch() -> list[Path]:
    """What killed runs of this user left in `$TMPDIR`."""
    return [folder for folder in _subfolders(Path(tempfile.gettempdir())) if _is_old_scratch(folder)]


def _is_old_scratch(folder: Path) -> bool:
    # Only what bears our mark, or a name that nobody else gives: others may call theirs stepscope, too.
    ours = _SCRATCH.fullmatch(folder.name) and _owner_of(folder).startswith(b"stepscope ")
    if not (ours or _SPILL.fullmatch(folder.name)):
        return False
    try:
        return folder.lstat().st_uid == os.geteuid() and _is_left(folder)
    except OSError:
        return False


def _subfolders(where: Path) -> list[Path]:
    """The folders in a folder that may be ours; links are none."""
    found = []
    with suppress(OSError), os.scandir(where) as entries:
        for entry in entries:
            if not entry.name.startswith((".", "stepscope-")):
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found.append(Path(entry.path))
    return sorted(found)


def _owner_of(folder: Path) -> bytes:
    try:
        return (folder / OWNER).read_bytes()
    except OSError:
        return b""


def _is_left(folder: Path) -> bool:
    """Whether the process that made a folder is gone."""
    if _owner_of(folder) == _machine():
        with suppress(OSError):
            handle = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            else:
                return True
            finally:
                os.close(handle)
    return time.time() - _changed(folder) > _DAY


def _changed(folder: Path) -> float:
    """When something in a folder last changed; now, if that cannot be told."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return time.time()


def size_of(folder: Path) -> int:
    """How many bytes lie in a folder and those in it."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).lstat().st_size
    return total


def sweep(where: Path) -> None:
    """Deletes what killed runs left in a folder of stores and in `$TMPDIR`; what cannot be deleted stays."""
    for folder in (*abandoned(where), *abandoned_scratch()):
        shutil.rmtree(folder, ignore_errors=True)
