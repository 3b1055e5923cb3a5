"""How much memory there may be, and what is said when it is not enough."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.errors import OutOfMemoryError, StepscopeError

__all__ = [
    "address_space",
    "available",
    "data_limited",
    "is_lack_of_memory",
    "is_limited",
    "keep_little",
    "limit_database",
    "not_enough",
    "release_freed",
    "share_for_database",
    "share_of_workers",
    "workers_that_fit",
]

_DATABASE_BYTES = 600_000_000
"""What DuckDB may take; the rest of a report stays below 400 MB, so that all of it is below 1 GiB."""
_BESIDE_BYTES = 400_000_000
"""What a process takes beside its database, at most."""
_LEAST_BYTES = 64_000_000
_ARENAS, _OWN_MAPPING, _KEPT_AT_END = -8, -3, -1
"""What mallopt() calls them: how many heaps there are, from which size on memory is in none of them, and how
much a heap keeps at its end."""
_WORDS = (
    "bad_alloc",
    "cannot allocate",
    "failed to map segment",
    "failed to allocate",
    "could not allocate",
    "can't start new thread",
    "resource temporarily unavailable",
    "out of memory",
    "malloc of size",
    "memory allocation",
    "memoryerror",
    "not enough memory",
)
"""How libraries say that there is no memory left for data, code or threads."""


def address_space() -> int | None:
    """How many bytes of addresses this process may use (`ulimit -v`); None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


_limit: list[int] = []
"""What the database of this process may take, where it has to share the machine with others."""


def share_for_database() -> int:
    """How many bytes the database may take: a third of what is left where the address space is limited."""
    most = _limit[-1] if _limit else _DATABASE_BYTES
    limit = address_space()
    if limit is None:
        return most
    left = limit - _addresses_in_use()
    return max(_LEAST_BYTES, min(most, left // 3))


def limit_database(n_bytes: int) -> None:
    """From now on databases of this process take at most so much."""
    _limit[:] = [n_bytes]


def is_limited() -> bool:
    """Whether the database of this process has to share its memory."""
    return bool(_limit)


def keep_little() -> None:
    """What libraries free can be given back, here and in processes started from here; see release_freed().

    pyarrow and DuckDB each keep what a large question took for the next one, in each of their threads, and a
    question to one of them finds nothing of what the other keeps. They look at these variables when they are
    loaded. The C library, which pyarrow uses then, keeps it for each of many threads unless it is told.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("DUCKDB_JE_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    import ctypes

    with suppress(AttributeError):  # not every C library has it
        adjust = ctypes.CDLL(None).mallopt
        adjust(_ARENAS, 2)
        adjust(_OWN_MAPPING, 32 << 20)  # to ask the machine for each piece would cost as much as to fill it
        adjust(_KEPT_AT_END, 64 << 20)


def release_freed() -> None:
    """Gives the machine back what was freed here: pyarrow and the C library keep it for later."""
    import ctypes

    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


def available() -> int | None:
    """How many bytes can be had on this machine, and in its container; None if nobody tells."""
    found = []
    with suppress(OSError, ValueError):
        told = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
        found += [int(told[1]) * 1024] if told else []
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):  # `max` for no limit is no number
            place = Path("/sys/fs/cgroup")
            limit = int((place / most).read_text(encoding="ascii"))
            found.append(limit - int((place / used).read_text(encoding="ascii")))
    return max(0, min(found)) if found else None


def workers_that_fit(most: int) -> int:
    """How many processes that read profiles fit into memory side by side: at least one, at most so many."""
    here = available()
    return most if here is None else max(1, min(most, here // (_BESIDE_BYTES + _LEAST_BYTES)))


def share_of_workers(workers: int) -> int:
    """What the database of each of so many processes may take."""
    here = available()
    if here is None:
        return _DATABASE_BYTES
    return max(_LEAST_BYTES, min(_DATABASE_BYTES, here // max(workers, 1) - _BESIDE_BYTES))


def _addresses_in_use() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  # no file that is kept
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


@contextmanager
def data_limited(more: int) -> Iterator[None]:
    """Limits the data of the process to so much more than it has, whoever takes it."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:  # noqa: PTH123  # no file that is kept
            used = re.search(r"VmData:\s+(\d+)", file.read())
    except OSError:
        used = None
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if used and soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (int(used[1]) * 1024 + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def is_lack_of_memory(error: BaseException | str) -> bool:
    """Whether something failed because memory, or threads, could not be had."""
    if isinstance(error, str):
        return any(word in error.lower() for word in _WORDS)
    if isinstance(error, StepscopeError):  # its words may be the user's
        return isinstance(error, OutOfMemoryError)
    if isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryException", "ArrowMemoryError"):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if is_lack_of_memory(str(error)):
        return True
    cause = error.__cause__
    return cause is not None and is_lack_of_memory(cause)


def not_enough() -> OutOfMemoryError:
    """One line for all of these."""
    from stepscope import units

    limit = address_space()
    if limit is None:
        return OutOfMemoryError(
            "there is not enough memory", hint="close other programs, or run it on a machine with more memory"
        )
    return OutOfMemoryError(
        f"there is not enough memory: this process may use {units.size(limit)} of addresses",
        hint="allow more: ulimit -v unlimited, or prlimit --as=4294967296 stepscope …",
    )
