"""A run's own small store: the summaries of its ranks and the tables over all of them.

It lies in the cache beside the stores of the ranks, and is found by where the profiles lie, their sizes and
times, and the code that made it. Nothing in it is needed: what is missing or damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cluster.tasks import read_table, written_table
from stepscope.errors import StepscopeError
from stepscope.store import cache
from stepscope.store.layout import META, build
from stepscope.streams import is_url
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.runs.summary import RankSummary

__all__ = ["KeptRun", "Stamp", "stamp"]

RUN_FORMAT = "run 1"
_SUMMARIES = "summaries"

Stamp = tuple[str, int]
"""What tells a profile from its other versions, at little cost, and its size in bytes."""


def stamp(source: str) -> Stamp | None:
    """Place, size and times of a profile; None where they cannot be told, as of a pipe."""
    if is_url(source):
        version = cache.versions([source])
        size = cache.size_of_url(source)
        return None if version is None or size is None else (f"{source} {version[0]}", size)
    try:
        path = Path(source).absolute()
        told = path.stat()
    except (OSError, ValueError):
        return None
    if not path.is_file():
        return None
    return f"{path} {told.st_size} {told.st_mtime_ns} {told.st_ctime_ns}", told.st_size


@once
def _code() -> str:
    """What tells this code from what it was before: a table that it would not make is not taken."""
    package = Path(__file__).parent.parent
    files = sorted(package.rglob("*.py"))
    told = [f"{file.relative_to(package)} {(at := file.stat()).st_size} {at.st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


class _IncompleteError(Exception):
    """A rank is missing."""


class KeptRun:
    """The store of a run in a folder of stores."""

    def __init__(self, name: str, where: Path, stamps: Sequence[str]) -> None:
        digest = hashlib.sha256("\n".join((RUN_FORMAT, _code(), *stamps)).encode(errors="surrogateescape"))
        self.name = name
        self.folder = where / f"{cache.plain(name.rstrip('/').rpartition('/')[2])}-{digest.hexdigest()[:16]}"

    def summaries(self) -> list[RankSummary] | None:
        """The summaries of all ranks; None if they are not there."""
        from stepscope.runs.summary import read_summary

        try:
            sizes = json.loads((self.folder / META).read_bytes())["sizes"]
            with (self.folder / _SUMMARIES).open("rb") as file:
                found = [read_summary(file.read(size), str(self.folder)) for size in sizes]
        except (OSError, ValueError, KeyError, TypeError, StepscopeError):
            return None
        cache.touch(self.folder)
        return found

    def collect(self, payloads: Callable[[], Iterator[bytes | None]]) -> None:
        """Keeps summaries as they come, and none of them if one is missing: it may be there next time."""
        sizes: list[int] = []

        def make(folder: Path) -> None:
            with (folder / _SUMMARIES).open("wb") as file:
                sizes.extend(-1 if payload is None else file.write(payload) for payload in payloads())
            if -1 in sizes:
                raise _IncompleteError
            told = {"format": RUN_FORMAT, "source": self.name, "sizes": sizes}
            (folder / META).write_text(json.dumps(told), encoding="utf-8")

        with suppress(_IncompleteError):
            build(self.folder, make, replace=True)

    def table(
        self, name: str, options: Mapping[str, Any], row: type, make: Callable[[], Table[Any]]
    ) -> Table[Any]:
        """A table over all ranks: the one that was kept, or a new one."""
        if not self.folder.is_dir():
            return make()
        told = json.dumps([name, sorted(options.items())], default=str)
        file = self.folder / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.arrow"
        with suppress(OSError, ValueError, TypeError):
            return Table(row, *read_table(file.read_bytes()))
        found = make()
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        with suppress(OSError):
            aside.write_bytes(written_table(found))
            aside.replace(file)
        return found
