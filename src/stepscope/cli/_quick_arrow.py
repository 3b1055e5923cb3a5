"""Imports pyarrow without what takes long and helps no command: pandas, threads for linear algebra."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["quick_arrow"]

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
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


def quick_arrow() -> None:
    """Imports pyarrow, and makes its first array, at which it looks once for pandas, while there is none.

    What needs pandas later still finds it: `to_pandas()` looks again.
    """
    with _one_blas_thread():
        import pyarrow as pa
    if "pandas" in sys.modules:
        return
    hidden = _WithoutPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
