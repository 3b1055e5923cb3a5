"""Keeps pyarrow from importing pandas, which takes half a second and is of no use to a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["spare_pandas"]


class _WithoutPandas(MetaPathFinder):
    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)
        return None


def spare_pandas() -> None:
    """Makes pyarrow's first array, at which it looks once whether there is pandas, as if there were none.

    What needs pandas later still finds it: `to_pandas()` looks again.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    hidden = _WithoutPandas()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hidden)
