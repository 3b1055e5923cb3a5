"""A run's own small store: the summaries of its ranks and the tables over all of them.

It lies in the cache beside the stores of the ranks, and is found by where the profiles lie, their sizes and
times, and the code that made it. Nothing in it is needed: what is missing or damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cluster.tasks import read_table, written_table
from stepscope.runs.summary import SUMMARY_TABLES, RankFacts, RankSummary
from stepscope.store import cache
from stepscope.store.layout import META, build, put_file
from stepscope.streams import is_url
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeptRun", "Stamp", "stamp"]

RUN_FORMAT = "run 1"

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


class KeptRun:
    """The store of a run in a folder of stores."""

    def __init__(self, name: str, where: Path, stamps: Sequence[str]) -> None:
        digest = hashlib.sha256("\n".join((RUN_FORMAT, _code(), *stamps)).encode(errors="surrogateescape"))
        self.name = name
        self.folder = where / f"{cache.plain(name.rstrip('/').rpartition('/')[2])}-{digest.hexdigest()[:16]}"

    def summaries(self) -> list[RankSummary] | None:
        """The summaries of all ranks; None if not all of them are there."""
        return self._read(all_of_them=True)

    def collect(self, found: Callable[[], Iterator[RankSummary | None]]) -> list[RankSummary]:
        """Keeps summaries as they come, so that none has to be in memory; None stands for a missing one.

        Where one is missing, the others are not taken for the whole run next time.
        """
        facts: list[dict[str, Any]] = []
        missing = 0

        def make(folder: Path) -> None:
            nonlocal missing
            with ExitStack() as files:
                writers = {name: _Writer(folder / f"{name}.arrow", files) for name in SUMMARY_TABLES}
                for one in found():
                    if one is None:
                        missing += 1
                        continue
                    facts.append(asdict(one.facts))
                    for name, writer in writers.items():
                        writer.add(one.tables[name])
            sizes = {file.name: file.stat().st_size for file in folder.glob("*.arrow")}
            told = {"format": RUN_FORMAT, "source": self.name, "missing": missing, "sizes": sizes}
            put_file(folder / META, json.dumps({**told, "facts": facts}).encode())

        build(self.folder, make, replace=True)
        return self._read(all_of_them=False) or []

    def _read(self, *, all_of_them: bool) -> list[RankSummary] | None:
        import pyarrow as pa

        try:
            told = json.loads((self.folder / META).read_bytes())
            if told["format"] != RUN_FORMAT or (all_of_them and told["missing"]):
                return None
            facts = [RankFacts(**{key: _frozen(one[key]) for key in one}) for one in told["facts"]]
            parts = {
                name: _batches(self.folder / f"{name}.arrow", told["sizes"][f"{name}.arrow"], len(facts))
                for name in SUMMARY_TABLES
            }
        except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
            return None
        cache.touch(self.folder)
        return [
            RankSummary(fact, _Tables({name: parts[name][place] for name in parts}))
            for place, fact in enumerate(facts)
        ]

    def table(
        self, name: str, options: Mapping[str, Any], row: type, make: Callable[[], Table[Any]]
    ) -> Table[Any]:
        """A table over all ranks: the one that was kept, or a new one."""
        if not self.folder.is_dir():
            return make()
        told = json.dumps([name, sorted(options.items())], default=str)
        file = self.folder / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.arrow"
        with suppress(OSError, ValueError, TypeError):
            return read_table(file.read_bytes(), row)
        found = make()
        with suppress(OSError):
            put_file(file, written_table(found))
        return found


class _Writer:
    """A file with the tables of ranks, a batch each."""

    def __init__(self, path: Path, files: ExitStack) -> None:
        self._path, self._files = path, files
        self._writer: Any = None

    def add(self, table: Table[Any]) -> None:
        """The table of the next rank."""
        import pyarrow as pa

        whole = table.arrow.combine_chunks()
        if self._writer is None:
            self._writer = self._files.enter_context(pa.ipc.new_file(str(self._path), whole.schema))
        batches = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=whole.schema)]
        self._writer.write_batch(batches[0])


def _batches(path: Path, size: int, count: int) -> list[pa.RecordBatch]:
    """The tables of ranks, which stay in their file until somebody looks at them."""
    import pyarrow as pa

    if not count:
        return []
    if path.stat().st_size != size:
        raise ValueError("it was cut short")
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.num_record_batches != count:
        raise ValueError("it has other ranks")
    found = [reader.get_batch(place) for place in range(count)]
    pa.Table.from_batches(found).validate(full=True)
    return found


class _Tables(Mapping[str, Table[Any]]):
    """The tables of one rank, made when they are asked for."""

    def __init__(self, batches: Mapping[str, pa.RecordBatch]) -> None:
        self._batches = batches
        self._made: dict[str, Table[Any]] = {}

    def __getitem__(self, name: str) -> Table[Any]:
        if name not in self._made:
            import pyarrow as pa

            self._made[name] = Table(SUMMARY_TABLES[name], pa.Table.from_batches([self._batches[name]]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
