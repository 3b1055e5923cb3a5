"""Imports pyarrow without what takes long and helps no command: numpy, pandas, remote files, help texts.

A process that runs nothing but a command does without numpy: neither its code nor DuckDB needs any. Whoever
calls a command from Python may hand arrays to pyarrow afterwards, and so may a plug-in of somebody else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stepscope import registry

__all__ = ["own_process", "quick_arrow"]

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_HELP = "pyarrow.vendored.docscrape"
_FILE_SYSTEMS = {"pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs"}
_FUNCTIONS = "pyarrow.compute"
_process = {"is_own": False}


def own_process() -> None:
    """Says that this process was started for one command."""
    _process["is_own"] = True


class _Hidden:
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
    """Another thread may be going through the finders: it gets a list of its own, or would miss one."""
    hidden = _Hidden({name for name in names if name not in sys.modules})
    sys.meta_path = [hidden, *sys.meta_path]
    try:
        yield
    finally:
        sys.meta_path = [one for one in sys.meta_path if one is not hidden]


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


class _FewFunctions:
    """The functions that `pyarrow.compute` itself asks for by name, in place of all."""

    def __init__(self, all_functions: Any) -> None:
        self.get_function = all_functions.get_function

    def list_functions(self) -> list[str]:
        return ["utf8_zero_fill"]


def _import_functions() -> None:
    """Imports `pyarrow.compute`, which makes 300 functions: here each is made when it is asked for."""
    if _FUNCTIONS in sys.modules:
        return
    import pyarrow._compute as core

    registry_of = core.function_registry
    core.function_registry = lambda: _FewFunctions(registry_of())
    try:
        with _without_help():
            import pyarrow.compute as functions
    except (AttributeError, KeyError):  # of a version that asks for others, too; it is imported as usual
        sys.modules.pop(_FUNCTIONS, None)
        return
    finally:
        core.function_registry = registry_of
    functions.function_registry = registry_of
    functions.__getattr__ = _function


def _function(name: str) -> Any:
    functions = sys.modules[_FUNCTIONS]
    try:
        found = functions.function_registry().get_function(name.removesuffix("_"))
    except KeyError:
        raise AttributeError(f"module {_FUNCTIONS!r} has no attribute {name!r}") from None
    made = functions._wrap_function(name, found)  # noqa: SLF001  # as it makes all of them
    setattr(functions, name, made)
    return made


@cache
def quick_arrow() -> None:
    """Imports pyarrow, and makes its first array, at which it looks once for pandas, while there is none.

    What needs pandas later still finds it: `to_pandas()` looks again.
    """
    own = _process["is_own"] and not registry.has_plug_ins()
    with _one_blas_thread(), _without({"numpy"} if own else set()):
        import pyarrow as pa

        if own:
            _quick_parts()
    with _without({"pandas"}):
        pa.array([0])


def _quick_parts() -> None:
    """What any command imports that opens a trace, in a process that does nothing else."""
    from stepscope.store.quick_duckdb import quick_duckdb

    # pyarrow looks for it whenever it is given a number.
    sys.modules.setdefault("dateutil.relativedelta", None)  # type: ignore[arg-type]
    _import_functions()
    with _without({*_FILE_SYSTEMS, "pyarrow.dataset"}):
        import pyarrow.acero
        import pyarrow.parquet  # noqa: F401
    quick_duckdb()
