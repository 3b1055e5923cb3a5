"""Bytes of a profile from anywhere: a path, `-`, or a URL; plain, gzip or zstd, told apart by content.

Decompression runs in a thread of its own, a few pieces ahead of the reader, so that memory is bounded and two
cores are busy. A broken stream gives every byte before the damage and then says what broke.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.errors import StepscopeError

__all__ = ["ByteStream", "is_url", "open_stream"]

READ = 1 << 15
PIECE = 1 << 19
AHEAD = 4


def is_url(source: str) -> bool:
    """Whether the source is opened by fsspec rather than as a file."""
    return "://" in source


class ByteStream:
    """The decompressed bytes of one profile, piece by piece, and how far the reading has got."""

    def __init__(self, name: str, raw: BinaryIO, size: int | None) -> None:
        self.name = name
        self.size = size
        self.read_bytes = 0
        self.broken = ""
        self._raw = raw
        self._first = b""
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(AHEAD)
        self._stop = threading.Event()

    def head(self, size: int = 4096) -> bytes:
        """The first decompressed bytes, without using them up."""
        if not self._first:
            self._pieces = self._decompress()
            self._first = next(self._pieces, b"")
        return self._first[:size]

    def __iter__(self) -> Iterator[bytes]:
        self.head()
        worker = threading.Thread(target=self._work, name="decompress", daemon=True)
        worker.start()
        try:
            if self._first:
                yield self._first
            while (piece := self._queue.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self._stop.set()
            while worker.is_alive():
                with contextlib.suppress(queue.Empty):
                    self._queue.get(timeout=0.05)
            self._raw.close()

    def close(self) -> None:
        """Lets go of the source."""
        self._raw.close()

    def _work(self) -> None:
        last: BaseException | None = None
        try:
            for piece in self._pieces:
                self._queue.put(piece)
                if self._stop.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the reading thread, which raises it
            last = error
        self._queue.put(last)

    def _read(self, size: int = READ) -> bytes:
        piece = self._raw.read(size)
        self.read_bytes += len(piece)
        return piece

    def _decompress(self) -> Iterator[bytes]:
        first = self._read()
        if first[:2] == b"\x1f\x8b":
            return self._inflate(first, _gzip_decoder())
        if first[:4] == b"\x28\xb5\x2f\xfd":
            return self._inflate(first, _zstd_decoder())
        return self._plain(first)

    def _plain(self, first: bytes) -> Iterator[bytes]:
        piece = first
        while piece:
            yield piece
            piece = self._read(PIECE)

    def _inflate(self, data: bytes, make: Callable[[], Any]) -> Iterator[bytes]:
        """Members or frames one after the other; what follows the last whole one is damage."""
        decoder = make()
        done = False
        while True:
            try:
                piece = decoder.decompress(data, PIECE)
            except Exception as error:  # noqa: BLE001 - each library has an error class of its own
                self.broken = f"the compressed stream is broken near byte {self.read_bytes:,}: {error}"
                return
            if piece:
                yield piece
            if decoder.eof:
                data = decoder.unused_data or self._read()
                # Padding with zeros after a member is common and harmless.
                data = data.lstrip(b"\0")
                done = not data
                if done:
                    return
                decoder = make()
                continue
            data = getattr(decoder, "unconsumed_tail", b"")
            if not data and getattr(decoder, "needs_input", True):
                data = self._read()
                if not data:
                    self.broken = f"the compressed stream ends too early, after {self.read_bytes:,} bytes"
                    return


def _gzip_decoder() -> Callable[[], Any]:
    try:
        from isal import isal_zlib
    except ImportError:  # no wheel for this machine: slower, the same result
        return lambda: zlib.decompressobj(31)
    return lambda: isal_zlib.decompressobj(31)


def _zstd_decoder() -> Callable[[], Any]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor


def open_stream(source: str) -> ByteStream:
    """Opens a path, `-` for standard input, or a URL."""
    if source == "-":
        return ByteStream("standard input", sys.stdin.buffer, None)
    if is_url(source):
        return _open_url(source)
    path = Path(source)
    try:
        raw = path.open("rb", buffering=0)
    except (FileNotFoundError, NotADirectoryError):
        raise StepscopeError(f"there is no file {source}", hint=_similar(path)) from None
    except PermissionError:
        raise StepscopeError(
            f"no permission to read {source}", hint=f"chmod +r {source}, or copy it to a place of yours"
        ) from None
    except IsADirectoryError:
        raise StepscopeError(f"{source} is a folder", hint=f"name a trace in it: ls {source}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StepscopeError(f"{source[:200]} cannot be opened: {why}", hint="check the name") from error
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
