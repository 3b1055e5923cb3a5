"""Imports pyarrow without what takes long and helps no command: numpy, pandas, texts for help().

A process that runs nothing but a command does without numpy: neither its code nor DuckDB needs any. Whoever
calls a command from Python may hand arrays to pyarrow afterwards, and so may a plug-in of somebody else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from stepscope import registry

__all__ = ["own_process", "quick_arrow"]

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_HELP = "pyarrow.vendored.docscrape"
_process = {"is_own": False}


def own_process() -> None:
    """Says that this process was started for one command."""
    _process["is_own"] = True


class _Hidden(MetaPathFinder):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.names:
            raise ModuleNotFoundError(fullname, name=fullname)
        return None


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Where numpy is imported, OpenBLAS starts a thread for each core, and all of them spin for a while.

    Programs that a command starts are not to inherit it.
    """
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


@contextmanager
def _without(names: set[str]) -> Iterator[None]:
    hidden = _Hidden({name for name in names if name not in sys.modules})
    sys.meta_path.insert(0, hidden)
    try:
        yield
    finally:
        sys.meta_path.remove(hidden)


@contextmanager
def _without_help() -> Iterator[None]:
    """`pyarrow.compute` reads the help on all its options to write that on its functions."""
    if _HELP in sys.modules:
        yield
        return
    quick = ModuleType(_HELP)
    quick.NumpyDocString = lambda _text: {"Parameters": ()}  # type: ignore[attr-defined]
    sys.modules[_HELP] = quick
    try:
        yield
    finally:
        del sys.modules[_HELP]


def quick_arrow() -> None:
    """Imports pyarrow, and makes its first array, at which it looks once for pandas, while there is none.

    What needs pandas later still finds it: `to_pandas()` looks again.
    """
    own = _process["is_own"] and not registry.has_plug_ins()
    with _one_blas_thread(), _without({"numpy"} if own else set()):
        import pyarrow as pa

        if own:
            with _without_help():
                import pyarrow.compute
            from stepscope.store.quick_duckdb import quick_duckdb

            quick_duckdb()
    with _without({"pandas"}):
        pa.array([0])
