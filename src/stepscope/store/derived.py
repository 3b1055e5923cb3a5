"""Tables that are expensive to make and not always needed: derived at first use, then kept in the store."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.schema import DERIVED, DerivedTables
from stepscope.store.layout import locked, seal
from stepscope.store.leftovers import scratch
from stepscope.store.sums import SUMS, read_sums, say, sum_of, write_sums

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["DerivedTableBuilder"]


class DerivedTableBuilder:
    """Makes the tables of one trace: in its store, or in a temporary place beside a read-only one."""

    def __init__(self) -> None:
        self.paths: dict[str, Path] = {}
        self._lock = threading.RLock()

    def have(self, name: str, trace: Trace, progress: Progress | None) -> None:
        """Makes a table unless it is there, and before it those that it is made of."""
        if name not in self.paths:
            with self._lock:
                self._have(name, trace, progress)

    def _have(self, name: str, trace: Trace, progress: Progress | None) -> None:
        if name in self.paths:  # another thread may have been faster
            return
        tables = next(one for one in DERIVED if name in one.names)
        for needed in tables.needs:
            self.have(needed, trace, progress)
        place = self._place(tables, trace, progress)
        self.paths |= {one: place / f"{one}.parquet" for one in tables.names}

    def _place(self, tables: DerivedTables, trace: Trace, progress: Progress | None) -> Path:
        """The folder where the tables are now."""
        folder = trace.folder
        if _is_done(tables, folder):
            return folder
        trace.check_stored()  # what is made of damaged tables would be wrong for good
        try:
            with locked(folder):
                if not _is_done(tables, folder):  # another process may have been faster
                    if any((folder / f"{name}.parquet").exists() for name in tables.names):
                        say(f"the table {tables.names[0]} of the store {folder} is damaged: it is made again")
                    _make(tables, trace, folder, progress)
                return folder
        except OSError as refused:
            try:
                place = Path(tempfile.mkdtemp(dir=scratch()))
                weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
                _make(tables, trace, place, progress)
            except OSError as error:
                raise StepscopeError(
                    f"no place for the table {tables.names[0]}: {refused}; {error}",
                    hint="free some space, or set TMPDIR to a folder with space",
                ) from error
            return place


def _is_done(tables: DerivedTables, folder: Path) -> bool:
    """Whether the tables are there, as they were written, and made of this store."""
    try:
        sums = read_sums(folder / _sums_of(tables))
        return sums is not None and all(sum_of(folder / name) == one for name, one in sums.items())
    except OSError:
        return False


def _sums_of(tables: DerivedTables) -> str:
    """The file with the checksums of tables that are made together."""
    return f"{tables.names[0]}.sums.txt"


def _make(tables: DerivedTables, trace: Trace, folder: Path, progress: Progress | None) -> None:
    """Writes tables aside and renames them: a killed run leaves no half of one."""
    module, _, function = tables.maker.partition(":")
    write = getattr(importlib.import_module(f"stepscope.store.{module}"), function)
    # One name for all: who writes has the lock, and what a killed run left is written over.
    partials = [folder / f".{name}.partial" for name in tables.names]
    try:
        write(trace, *partials, progress=progress)
        files = [f"{name}.parquet" for name in tables.names]
        for name, partial in zip(files, partials, strict=True):
            partial.replace(folder / name)
        # Without them the tables count as not made; with those of the store they belong to no other.
        sums = {name: sum_of(folder / name) for name in files}
        write_sums(partials[0], {**sums, SUMS: sum_of(trace.folder / SUMS)})
        partials[0].replace(folder / _sums_of(tables))
        seal(folder / name for name in (*files, _sums_of(tables)))
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
        if progress:
            progress(tables.doing, 1.0, 0, 0)
