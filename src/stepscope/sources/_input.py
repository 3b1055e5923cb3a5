"""What a source is given to read: a file, a folder, a pipe or a URL, each as the source needs it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.errors import StepscopeError
from stepscope.store.leftovers import scratch
from stepscope.store.meta import Damage
from stepscope.streams import ByteStream, files_in, is_url, open_stream

if TYPE_CHECKING:
    from stepscope.store.meta import SourceMeta
    from stepscope.streams import Progress

__all__ = ["Input"]

_SQLITE = b"SQLite format 3\0"


class Input:
    """One thing to read. `head`, `path` and `listing` tell what it is; `stream` or `as_file()` give it."""

    def __init__(self, word: str, progress: Progress | None = None) -> None:
        self.word = word
        # A file name may hold any bytes; what is stored and shown of it is text.
        self.name = "standard input" if word == "-" else word.encode("utf-8", "backslashreplace").decode()
        """As people call it."""
        self.path = None if word == "-" or is_url(word) else Path(word)
        """Where it lies; None for standard input and URLs."""
        self.is_folder = self.path is not None and _is(self.path, stat.S_ISDIR)
        self.listing = _listing(self.path) if self.path and self.is_folder else ()
        """The names in it, if it is a folder."""
        self.progress = progress
        """To be called now and then, if it is there."""
        self._stream: ByteStream | None = None
        self._unpacked: Path | None = None

    @property
    def head(self) -> bytes:
        """Its first bytes, 4,096 at most, decompressed; those of a folder are none."""
        return b"" if self.is_folder else self.stream.head()

    @property
    def first_bytes(self) -> bytes:
        """The same as they are: some binary files begin with what is a blank in a text."""
        return b"" if self.is_folder else bytes(self.stream.first_bytes())

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a database of SQLite."""
        return self.head.startswith(_SQLITE)

    @property
    def stream(self) -> ByteStream:
        """Its bytes, decompressed, to be gone through once."""
        if self._stream is None:
            self._stream = open_stream(self.word)
        return self._stream

    def whole(self, most: int, meaning: str = "", *, hint: str) -> bytes:
        """All its bytes, decompressed; more than `most` are refused, and what that means is said."""
        raw = bytearray()
        for piece in self.stream:
            raw += piece
            if len(raw) > most:
                raise StepscopeError(f"{self.name} is larger than {units.size(most)}{meaning}", hint=hint)
        return bytes(raw)

    def as_file(self) -> Path:
        """A plain file, for those who must seek or open it by themselves.

        What is compressed, or comes from a pipe or a URL, is written to a temporary file first.
        """
        self.stream.head()  # tells whether it is compressed
        if self.path is not None and _is(self.path, stat.S_ISREG) and not self.stream.packed:
            return self.path.absolute()
        if self._unpacked is None:
            try:
                handle, name = tempfile.mkstemp(dir=scratch())
                self._unpacked = Path(name)
                with os.fdopen(handle, "wb") as file:
                    for piece in self.stream:
                        file.write(piece)
            except OSError as error:
                raise StepscopeError(
                    f"{self.name} could not be written to {tempfile.gettempdir()}: {error.strerror or error}",
                    hint="name a folder with more room: export TMPDIR=DIR",
                ) from error
        return self._unpacked

    def completed(self, meta: SourceMeta, kind: str) -> SourceMeta:
        """What a source says of itself, and what it need not say."""
        size, told = self._size(), meta.damage
        read = self._stream.given_bytes if self._stream else 0
        if self._stream and self._stream.broken:
            told += (Damage(self._stream.broken),)
        if self._stream and self._stream.changed:
            told += (Damage("the file was written to while it was read: it may be half old and half new"),)
        return replace(
            meta,
            source=meta.source or self.name,
            kind=meta.kind or kind,
            compressed_bytes=meta.compressed_bytes or size,
            bytes=meta.bytes or read or size,
            damage=told,
        )

    def _size(self) -> int:
        if self.path is not None and self.is_folder:
            return sum(file.stat().st_size for file in files_in(self.path))
        if self.path is not None and _is(self.path, stat.S_ISREG):
            return self.path.stat().st_size
        return self.stream.read_bytes

    def close(self) -> None:
        """Lets go of it, and of the temporary file."""
        if self._stream is not None:
            self._stream.close()
        if self._unpacked is not None:
            self._unpacked.unlink(missing_ok=True)


def _listing(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError as error:
        raise StepscopeError(
            f"the folder {folder} cannot be listed: {error.strerror}", hint=f"check it: ls -ld {folder}"
        ) from error


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether a path is of that kind; what cannot be looked at is none, and opening it will say why."""
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False
