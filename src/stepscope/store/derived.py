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
from stepscope.store.layout import locked

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
        try:
            with locked(folder):
                if not _is_done(tables, folder):  # another process may have been faster
                    _make(tables, trace, folder, progress)
                return folder
        except OSError as refused:
            try:
                place = Path(tempfile.mkdtemp(prefix="stepscope-"))
                weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
                _make(tables, trace, place, progress)
            except OSError as error:
                raise StepscopeError(
                    f"no place for the table {tables.names[0]}: {refused}; {error}",
                    hint="free some space, or set TMPDIR to a folder with space",
                ) from error
            return place


def _is_done(tables: DerivedTables, folder: Path) -> bool:
    return all((folder / f"{name}.parquet").is_file() for name in tables.names)


def _make(tables: DerivedTables, trace: Trace, folder: Path, progress: Progress | None) -> None:
    """Writes tables aside and renames them: a killed run leaves no half of one."""
    module, _, function = tables.maker.partition(":")
    write = getattr(importlib.import_module(f"stepscope.store.{module}"), function)
    # One name for all: who writes has the lock, and what a killed run left is written over.
    partials = [folder / f".{name}.partial" for name in tables.names]
    try:
        write(trace, *partials, progress=progress)
        for name, partial in zip(tables.names, partials, strict=True):
            partial.replace(folder / f"{name}.parquet")
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
        if progress:
            progress(tables.doing, 1.0, 0, 0)
