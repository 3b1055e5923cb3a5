"""Bytes of a profile from anywhere: a path, `-`, or a URL; plain or compressed, told apart by content.

Decompression runs in a thread of its own, a few pieces ahead of the reader, so that memory is bounded and two
cores are busy. A broken stream gives every byte before the damage and then says what broke.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from stepscope.errors import StepscopeError
from stepscope.threads import BoundedQueue
from stepscope.unpacking import BLANKS, Unpacker
from stepscope.writing import protect

__all__ = ["ByteStream", "Progress", "files_in", "is_url", "open_stream"]

Progress = Callable[[str, float | None, int, int], None]
"""Called now and then: what is done, which share of it (1 at the end), bytes of text and events so far."""

HEAD = 1 << 12
AHEAD = 8
MOST_BLANKS = 16 << 20
"""So many blanks may come before the text; who sends more has nothing to say."""


def is_url(source: str) -> bool:
    """Whether the source is opened by fsspec rather than as a file."""
    return "://" in source


def files_in(folder: Path) -> Iterator[Path]:
    """All files of a folder and of the folders in it, in the order of their names."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(place, name)).is_file())


class ByteStream:
    """The decompressed bytes of one profile, piece by piece, and how far the reading has got."""

    def __init__(self, name: str, raw: BinaryIO, size: int | None) -> None:
        self.name = name
        self.size = size
        self.given_bytes = 0
        self._unpacker = Unpacker(raw, name)
        self._raw = raw
        self._opened = _state(raw)
        self._closed: tuple[int, int] | None = None
        self._pieces: Iterator[bytes] | None = None
        self._first: bytes = b""
        self._queue: BoundedQueue[bytes | BaseException | None] = BoundedQueue(AHEAD)
        self._stop = threading.Event()
        self._worker: threading.Thread | None = None

    @property
    def read_bytes(self) -> int:
        """How many bytes of the source have been read."""
        return self._unpacker.read_bytes

    @property
    def packed(self) -> bool:
        """Whether the source is compressed."""
        return self._unpacker.packed

    @property
    def broken(self) -> str:
        """What is wrong with the compressed data, or nothing."""
        return self._unpacker.broken

    @property
    def cut(self) -> bool:
        """Whether bytes are missing: a wrong checksum alone takes none away."""
        return self._unpacker.cut

    @property
    def changed(self) -> bool:
        """Whether the file was written to while it was read."""
        return self._opened != (self._closed or _state(self._raw))

    def head(self, size: int = HEAD) -> bytes:
        """The first decompressed bytes that are not blank, without using them up."""
        return _text(self.first_bytes())[:size]

    def first_bytes(self) -> bytes:
        """The first decompressed bytes as they are: in a binary file a blank is a byte like any other."""
        if self._pieces is None:
            try:
                self._pieces = self._unpacker.pieces(HEAD)
                self._first = self._beginning(self._pieces)
            except BaseException:
                self._raw.close()
                raise
        return self._first

    @staticmethod
    def _beginning(pieces: Iterator[bytes]) -> bytes:
        first = next(pieces, b"")
        while len(first) < MOST_BLANKS and not _text(first) and (more := next(pieces, b"")):
            first += more
        return first

    def beginning(self, enough: Callable[[bytearray], bool]) -> bytes:
        """The first decompressed bytes until they are enough, and then no more: the source is let go.

        For a look at many files: it needs no second thread.
        """
        self.head()
        got = bytearray(self._first)
        try:
            while not enough(got) and (piece := next(self._pieces or iter(()), b"")):
                got += piece
        finally:
            self.close()
        return bytes(got)

    def __iter__(self) -> Iterator[bytes]:
        self.head()
        worker = self._worker = threading.Thread(target=self._work, name="decompress", daemon=True)
        worker.start()
        piece: bytes | BaseException | None = self._first
        try:
            while piece is not None:
                if isinstance(piece, BaseException):
                    raise piece
                self.given_bytes += len(piece)
                yield piece
                piece = self._queue.get()
        finally:
            self._stop.set()
            self._queue.let_go()
            worker.join(timeout=1)
            self.close()

    def close(self) -> None:
        """Lets go of the source; a read that waits for a stalled pipe is not waited for."""
        if self._worker is None or not self._worker.is_alive():
            self._closed = self._closed or _state(self._raw)
            self._raw.close()

    def _work(self) -> None:
        last: BaseException | None = None
        try:
            for piece in self._pieces or ():
                self._queue.put(piece)
                if self._stop.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the reading thread, which raises it
            last = error
        if not self._stop.is_set():
            self._queue.put(last)


def _text(first: bytes) -> bytes:
    """What follows the mark of UTF-8 and blanks."""
    return bytes(first).removeprefix(b"\xef\xbb\xbf").lstrip(BLANKS)


def _state(raw: BinaryIO) -> tuple[int, int] | None:
    """Size and time of a plain file, which tell whether it was changed; None for anything else."""
    try:
        found = os.fstat(raw.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def open_stream(source: str) -> ByteStream:
    """Opens a path, `-` for standard input, or a URL."""
    if source == "-":
        if sys.stdin is None:
            raise StepscopeError("standard input is closed", hint="name a file, or pipe a profile into it")
        with contextlib.suppress(OSError, ValueError):  # what stands for it in a test has no number
            protect(sys.stdin.fileno())
        # Without the buffer, whose lock a waiting read would hold when the program ends.
        return ByteStream("standard input", getattr(sys.stdin.buffer, "raw", sys.stdin.buffer), None)
    if is_url(source):
        return _open_url(source)
    path = Path(source)
    try:
        raw = path.open("rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError):
        raise StepscopeError(f"there is no file {source}", hint=_similar(path)) from None
    except PermissionError:
        raise StepscopeError(
            f"no permission to read {source}", hint=f"chmod +r {source}, or copy it to a folder of your own"
        ) from None
    except IsADirectoryError:
        raise StepscopeError(f"{source} is a folder", hint=f"name a trace in it: ls {source}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StepscopeError(f"{source[:200]} cannot be opened: {why}", hint="check the name") from error
    protect(path)
    return ByteStream(source, raw, os.fstat(raw.fileno()).st_size)


def _similar(path: Path) -> str:
    import difflib

    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except PermissionError:
        return f"the folder {path.parent} does not let you list it: check the name"
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else f"ls {path.parent} shows what is there"


def _open_url(source: str) -> ByteStream:
    try:
        import fsspec
    except ImportError:
        raise StepscopeError(
            f"reading {source} needs fsspec", hint='pip install "stepscope[remote]"'
        ) from None
    try:
        file = fsspec.open(source, "rb").open()
    except FileNotFoundError:
        raise StepscopeError(f"there is no file {source}", hint="check the address") from None
    except (ImportError, ValueError) as error:
        raise StepscopeError(
            f"{source} cannot be opened: {error}", hint="pip install the package that fsspec names"
        ) from error
    except OSError as error:
        raise StepscopeError(
            f"{source} cannot be opened: {error}", hint="check the address, and that you may read it"
        ) from error
    return ByteStream(source, file, getattr(file, "size", None))
