"""The run folder of a capture that a program starts itself: the same one for all of its ranks."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError

__all__ = ["folder_for"]

_asked = count()
"""How often this process asked for a folder: its ranks ask for the same ones."""


def folder_for(out: str | os.PathLike[str] | None, command: Sequence[str]) -> Path:
    """A new folder, made; ranks of one program get the one that the first of them made."""
    from stepscope.capture.launching import new_folder
    from stepscope.capture.plan import shared_store
    from stepscope.capture.ranks import rank

    asked = next(_asked)
    store = shared_store()
    if out is not None and store is not None and rank() != 0:
        folder = Path(
            out
        ).absolute()  # rank 0 looks whether it is empty; others may have written to it by now
    else:
        name = ["notebook"] if "ipykernel" in sys.modules else command
        folder = new_folder(None if out is None else Path(out), name)
    if store is None:
        return _made(folder, is_named=out is not None)
    if out is None:
        folder = _agreed(store, f"stepscope/folder/{asked}", folder)
    return _made(folder, is_named=True)


def _made(folder: Path, *, is_named: bool) -> Path:
    """Makes the folder; one without a given name gets another name if there is such a one."""
    name = folder.name
    for number in count(2):
        try:
            folder.mkdir(parents=True, exist_ok=is_named)
        except FileExistsError:
            folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            raise StepscopeError(
                f"the folder {folder} cannot be made: {error.strerror}", hint="choose another one: out=DIR"
            ) from error
        else:
            break
    return folder


def _agreed(store: Any, key: str, folder: Path) -> Path:
    """The folder of the rank that came first, without waiting for any."""
    with contextlib.suppress(RuntimeError, NotImplementedError):  # some stores cannot compare
        return Path(os.fsdecode(store.compare_set(key, "", str(folder))))
    return folder
