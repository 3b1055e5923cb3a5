"""The run folder of a capture that a program starts itself: the same one for all of its ranks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

__all__ = ["folder_for"]

_asked = count()
"""How often this process asked for a folder: its ranks ask for the same ones."""


def folder_for(out: str | os.PathLike[str] | None, command: Sequence[str]) -> Path:
    """An empty folder, made: the one that is wanted, or if there is something in it, `out-2`, `out-3`.

    A program that is run again must not fail because of that. Ranks get the folder of the first that asks.
    """
    from stepscope.capture.launching import is_one_of_many, new_folder
    from stepscope.capture.plan import shared_store

    key = f"stepscope/folder/{next(_asked)}"
    if out is not None:
        wanted = Path(out).absolute()
    else:
        wanted = new_folder(None, ["notebook"] if "ipykernel" in sys.modules else command)
    store = shared_store()
    if store is not None:
        wanted = _agreed(store, key, _free(wanted))
    elif not is_one_of_many():  # or it cannot be told from what another rank has written
        wanted = _free(wanted)
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


def _free(wanted: Path) -> Path:
    """The folder itself, or a name beside it, that is not taken."""
    names = (wanted, *(wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 10_000)))
    return next(name for name in names if not name.exists() or (name.is_dir() and not any(name.iterdir())))


def _agreed(store: Any, key: str, folder: Path) -> Path:
    """The folder of the rank that came first, without waiting for any."""
    with contextlib.suppress(RuntimeError, NotImplementedError):  # some stores cannot compare
        return Path(os.fsdecode(store.compare_set(key, "", str(folder))))
    return folder
