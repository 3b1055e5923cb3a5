"""The files of a timeline in a store: its boxes, where they lie, and what tells that both are whole.

The index has a checksum, and in it there is one of every few hundred boxes, which are compared when they are
read: to open a timeline costs nothing that grows with its boxes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from stepscope import _native
from stepscope.store.layout import seal
from stepscope.store.leftovers import scratch
from stepscope.store.sums import SUMS, read_sums, sum_of, write_sums

__all__ = ["TILE_PIXELS", "WIDTH_NS", "Begun", "kept", "make_aside", "make_in", "was_kept"]

WIDTH_NS = 1_000
"""The width of a pixel at level 1."""
TILE_PIXELS = 1024

Begun = Callable[[_native.TimelineFile], None]
"""Makes the tracks of an empty file."""

_BOXES, _INDEX, _SUMS = "timeline.boxes", "timeline.index", "timeline.sums.txt"
_HEAD = b"stepscope timeline 3\n"
_OLDER = (b"stepscope timeline 1\n", b"stepscope timeline 2\n")


def kept(folder: Path) -> _native.TimelineFile | None:
    """The timeline that was made of a store; None where there is none, or one that is not whole."""
    try:
        sums = read_sums(folder / _SUMS)
        if sums is None or sums.get(SUMS) != sum_of(folder / SUMS):
            return None
        if sums.get(_INDEX) != sum_of(folder / _INDEX):
            return None
        index = (folder / _INDEX).read_bytes()
        handle = os.open(folder / _BOXES, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        file = _native.TimelineFile(handle, WIDTH_NS, TILE_PIXELS)
        if not index.startswith(_HEAD):
            return None
        file.load(index[len(_HEAD) :])
        return file if os.fstat(handle).st_size == file.size else None
    except _native.TimelineDamaged:
        return None
    finally:
        os.close(handle)


def was_kept(folder: Path) -> bool:
    """Whether a timeline lies there that this version should be able to read."""
    try:
        with (folder / _INDEX).open("rb") as index:
            head = index.read(len(_HEAD))
    except OSError:
        head = b""
    return (folder / _SUMS).exists() and head not in _OLDER


def make_in(folder: Path, fill: Begun) -> None:
    """Makes a timeline aside and renames it: a killed run leaves no half of one. The store is locked."""
    # One name for all: who writes has the lock, and what a killed run left is written over.
    boxes, small = folder / f".{_BOXES}.partial", folder / f".{_INDEX}.partial"
    try:
        handle = os.open(boxes, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        file = _filled(handle, fill)
        (folder / _SUMS).unlink(missing_ok=True)
        boxes.replace(folder / _BOXES)
        small.write_bytes(_HEAD + file.index())
        small.replace(folder / _INDEX)
        write_sums(small, {_INDEX: sum_of(folder / _INDEX), SUMS: sum_of(folder / SUMS)})
        small.replace(folder / _SUMS)
        seal(folder / name for name in (_BOXES, _INDEX, _SUMS))
    finally:
        boxes.unlink(missing_ok=True)
        small.unlink(missing_ok=True)


def make_aside(fill: Begun) -> None:
    """Makes a timeline in a file without a name, for a store that cannot be written."""
    handle, name = tempfile.mkstemp(dir=scratch())
    Path(name).unlink()
    _filled(handle, fill)


def _filled(handle: int, fill: Begun) -> _native.TimelineFile:
    try:
        file = _native.TimelineFile(handle, WIDTH_NS, TILE_PIXELS)
    finally:
        os.close(handle)
    fill(file)
    return file
