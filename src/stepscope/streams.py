"""Bytes of a profile from anywhere: a path, `-`, or a URL; plain, gzip or zstd, told apart by content.

Decompression runs in a thread of its own, a few pieces ahead of the reader, so that memory is bounded and two
cores are busy. A broken stream gives every byte before the damage and then says what broke.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.errors import StepscopeError
from stepscope.threads import BoundedQueue
from stepscope.writing import protect

__all__ = ["ByteStream", "Progress", "files_in", "is_url", "open_stream"]

Progress = Callable[[str, float | None, int, int], None]
"""Called now and then: what is done, which share of it (1 at the end), bytes of text and events so far."""

READ = 1 << 15
HEAD = 1 << 12
PIECE = 1 << 20  # smaller pieces stay in a cache, but cost more hand-overs between threads than that saves
AHEAD = 8


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
        self.read_bytes = 0
        self.given_bytes = 0
        self.packed = False
        self.broken = ""
        self._raw = raw
        self._pieces: Iterator[bytes] | None = None
        self._first: bytes = b""
        self._queue: BoundedQueue[bytes | BaseException | None] = BoundedQueue(AHEAD)
        self._stop = threading.Event()
        self._worker: threading.Thread | None = None

    def head(self, size: int = HEAD) -> bytes:
        """The first decompressed bytes, without using them up."""
        if self._pieces is None:
            self._pieces = self._decompress()
            self._first = next(self._pieces, b"")
        return bytes(self._first[:size])

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

    def _read(self, size: int = READ) -> bytes:
        piece = self._raw.read(size)
        self.read_bytes += len(piece)
        return piece

    def _decompress(self) -> Iterator[bytes]:
        first = self._read()
        while len(first) < HEAD and (more := self._read()):
            first += more  # a pipe gives a few bytes at a time
        self.packed = first[:2] == b"\x1f\x8b" or first[:4] == b"\x28\xb5\x2f\xfd"
        if first[:2] == b"\x1f\x8b":
            if self._raw.seekable() and (fast := _fast_gzip_file()):
                return self._whole_gzip(fast)
            return self._inflate(first, _gzip_decoder)
        if first[:4] == b"\x28\xb5\x2f\xfd":
            return self._inflate(first, _zstd_decoder())
        return self._plain(first)

    def _plain(self, first: bytes) -> Iterator[bytes]:
        piece = first
        while piece:
            yield piece
            piece = self._read(PIECE)

    def _whole_gzip(self, fast: Callable[..., Any]) -> Iterator[bytes]:
        """The fast way; a broken file is read once more, with care."""
        self._raw.seek(0)
        file = fast(fileobj=self._raw)
        given = 0
        while True:
            try:
                piece = file.read1(PIECE)  # straight into the piece; readinto would copy it once more
            except Exception:  # noqa: BLE001 - whatever is wrong, the careful way finds out and says it
                yield from self._rescue(given)
                return
            self.read_bytes = self._raw.tell()
            if not piece:
                return
            given += len(piece)
            yield piece

    def _rescue(self, given: int) -> Iterator[bytes]:
        """What comes after the first `given` bytes, up to the very byte at which the stream breaks."""
        self._raw.seek(0)
        self.read_bytes = 0
        for piece in self._inflate(self._read(), _gzip_decoder):
            if given < len(piece):
                yield piece[given:]
            given = max(0, given - len(piece))

    def _inflate(self, data: bytes, make: Callable[[], Any]) -> Iterator[bytes]:
        """Members or frames one after the other; what follows the last whole one is damage."""
        decoder = make()
        while True:
            before = decoder.copy() if hasattr(decoder, "copy") else None
            try:
                piece = decoder.decompress(data, PIECE)
            except Exception as error:  # noqa: BLE001 - each library has an error class of its own
                self.broken = f"the compressed stream is broken near byte {self.read_bytes:,}: {error}"
                yield from _byte_by_byte(before, data)
                return
            if piece:
                yield piece
            if decoder.eof:
                # Padding with zeros after a member is common and harmless.
                data = (decoder.unused_data or self._read()).lstrip(b"\0")
                if not data:
                    return
                decoder = make()
                continue
            data = getattr(decoder, "unconsumed_tail", b"")
            if not data and getattr(decoder, "needs_input", True):
                data = self._read()
                if not data:
                    self.broken = f"the compressed stream ends too early, after {self.read_bytes:,} bytes"
                    return


def _byte_by_byte(decoder: Any, data: bytes) -> Iterator[bytes]:
    """What a decoder still gives before it fails."""
    if decoder is None:
        return
    with contextlib.suppress(zlib.error):
        for at in range(len(data)):
            if piece := decoder.decompress(data[at : at + 1]):
                yield piece


def _fast_gzip_file() -> Any:
    try:
        from isal.igzip import IGzipFile
    except ImportError:  # no wheel for this machine: zlib gives the same bytes, slower
        return None
    return IGzipFile


def _gzip_decoder() -> Any:
    return zlib.decompressobj(31)


def _zstd_decoder() -> Callable[[], Any]:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdDecompressor


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
