"""The files that may be profiles of a run: those of a folder, a pattern, an address, or named one by one."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs.reading import run_folder
from stepscope.runs.summary import SUMMARY_ENDING
from stepscope.sources import Input, reader_of
from stepscope.store.layout import is_store
from stepscope.streams import is_url

__all__ = ["Listed", "listed"]

_NEVER = (
    *(".py", ".pyc", ".so", ".md", ".html", ".png"),
    *(".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npy", ".npz"),
)
"""What lies beside profiles and is none; it may be large, and many."""
_MOST_FILES = 200_000


@dataclass(frozen=True, slots=True)
class Listed:
    """What words name."""

    files: tuple[str, ...]
    """Paths and addresses, each once."""
    recorded: tuple[Path, ...] = ()
    """Folders with the record of `stepscope run`."""
    asked: frozenset[str] = frozenset()
    """The files that were named themselves, not found in a folder."""


def listed(words: Sequence[str]) -> Listed:
    """All files that words name, in the order of words and names."""
    files: dict[str, None] = {}
    recorded: dict[Path, None] = {}
    asked: set[str] = set()
    for word in words:
        for one in _of_word(word):
            if isinstance(one, Path):
                recorded[one] = None
            else:
                files[one] = None
                if one == word:
                    asked.add(one)
            if len(files) + len(recorded) > _MOST_FILES:
                raise StepscopeError(
                    f"{word} holds over {_MOST_FILES:,} files", hint="name the folder of one run", exit_code=2
                )
    return Listed(tuple(files), tuple(recorded), frozenset(asked))


def _of_word(word: str) -> Iterator[str | Path]:
    """Files as texts, folders with a record as paths."""
    if is_url(word):
        yield from _at_address(word)
        return
    if word == "-":
        raise StepscopeError(
            "a run cannot be read from standard input", hint="name its folder, or a pattern", exit_code=2
        )
    path = Path(word)
    if os.path.isdir(path):  # noqa: PTH112  # what may not be looked at is none
        yield from _in_folder(path)
    elif os.path.lexists(path):
        yield run_folder(word) or word  # its run.json stands for a run
    elif glob.has_magic(word):
        found = sorted(glob.glob(word, recursive=True))  # noqa: PTH207  # a pattern may begin anywhere
        if not found:
            raise StepscopeError(f"no file fits the pattern {word}", hint="check the name")
        for one in found:
            yield from _in_folder(Path(one)) if Path(one).is_dir() else [one]
    elif "," in word:
        for piece in filter(None, (piece.strip() for piece in word.split(","))):
            yield from _of_word(piece)
    else:
        raise StepscopeError(
            f"there is no file or folder {word}", hint=f"ls {path.parent} shows what is there"
        )


def _in_folder(folder: Path) -> Iterator[str | Path]:
    """The profiles in it and in the folders in it; neither stores nor hidden files are any."""

    def refuse(error: OSError) -> None:
        raise StepscopeError(
            f"the folder {error.filename} cannot be listed: {error.strerror}",
            hint=f"check it: ls -ld {error.filename}",
        ) from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        here = Path(place)
        if run_folder(here) is not None:
            folders.clear()
            yield here
            yield from (str(here / name) for name in sorted(names) if name.endswith(SUMMARY_ENDING))
            continue
        if place != str(folder) and reader_of(Input(place)):
            folders.clear()
            yield place  # a source reads it as a whole
            continue
        folders[:] = sorted(name for name in folders if name[0] != "." and not is_store(here / name))
        if not is_store(here):
            yield from (str(here / name) for name in sorted(names) if _may_be_profile(name))


def _may_be_profile(name: str) -> bool:
    return not name.endswith(_NEVER) and not name.startswith(".")


def _at_address(address: str) -> Iterator[str]:
    """The same at an address that fsspec opens: a folder, a prefix, a pattern or a file."""
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(address)
        names = _found_at(system, path)
    except ImportError as error:
        hint = 'pip install "stepscope[remote]", or the package that fsspec names'
        raise StepscopeError(f"{address} cannot be listed: {error}", hint=hint) from error
    except (OSError, ValueError, NotImplementedError) as error:
        raise StepscopeError(
            f"{address} cannot be listed: {error}", hint="check the address, and that you may read it"
        ) from error
    if not names:
        raise StepscopeError(f"there is no profile at {address}", hint="check the address")
    for name in names:
        yield str(system.unstrip_protocol(name))


def _found_at(system: Any, path: str) -> list[str]:
    if glob.has_magic(path):
        return [name for name in sorted(system.glob(path)) if not system.isdir(name)]
    if system.isfile(path):
        return [path]
    return [name for name in sorted(system.find(path)) if _may_be_profile(name.rpartition("/")[2])]
