"""Compressed bytes to plain ones, format by format, told apart by content.

A damaged stream gives every byte before the damage. Most decoders throw away what they have decoded in the
call that fails: then the source is read once more up to there, and the last bytes are fed one by one.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from stepscope import interrupts
from stepscope.errors import StepscopeError
from stepscope.zipped import open_member

__all__ = ["BLANKS", "PIECE", "READ", "Unpacker", "format_of"]

READ = 1 << 15
PIECE = 1 << 20  # smaller pieces stay in a cache, but cost more hand-overs between threads than that saves
BLANKS = b" \t\r\n"
NESTED = 3
"""How many formats may be inside one another: a zip of a .gz is common, one of a zip of a zip is not."""

_SMALL = 1 << 10
_XZ_BYTES = 256 << 20
"""What an xz decoder may take; the highest level of xz needs 65 MiB."""
_MAGIC = {
    "gzip": b"\x1f\x8b",
    "zstd": b"\x28\xb5\x2f\xfd",
    "xz": b"\xfd7zXZ\x00",
    "bzip2": b"BZh",
    "lz4": b"\x04\x22\x4d\x18",
    "zip": b"PK\x03\x04",
}
_UNREAD = {
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "7z e -so FILE | stepscope report -"),
    b"Rar!": ("a rar archive", "unrar p -inul FILE | stepscope report -"),
    b"\x02\x21\x4c\x18": ("in lz4's old format", "lz4 -dc FILE | stepscope report -"),
    b"\xff\x06\x00\x00sNaPpY": ("in snappy's format", "unpack it first"),
    b"\x1f\x9d": ("in the format of compress", "uncompress -c FILE | stepscope report -"),
    b"PK\x05\x06": ("an empty zip archive", "zip it again"),
}


def format_of(head: bytes) -> str:
    """The compressed format that begins so, or nothing."""
    return next((name for name, magic in _MAGIC.items() if head.startswith(magic)), "")


def _is_skippable(head: bytes) -> bool:
    return head[:1] in b"PQRSTUVWXYZ[\\]^_" and head[1:4] == b"\x2a\x4d\x18"


class Unpacker:
    """Reads a source and gives its plain bytes; says in `broken` what was wrong with it."""

    def __init__(self, raw: BinaryIO, name: str) -> None:
        self.raw = raw
        self.name = name
        self.read_bytes = 0
        self.packed = False
        self.broken = ""
        self.cut = False
        """Whether bytes are missing, and not only a checksum is wrong."""

    def read(self, size: int = READ) -> bytes:
        """The next bytes as they are in the source."""
        piece = self.raw.read(size) or b""
        self.read_bytes += len(piece)
        return piece

    def pieces(self, least: int) -> Iterator[bytes]:
        """The plain bytes; the format is told from the first `least` bytes."""
        return self._unpacked(self._beginning(b"", least), least, self.read, NESTED)

    def _beginning(self, first: bytes, least: int) -> bytes:
        while len(first) < least and (more := self.read()):
            first += more  # a pipe gives a few bytes at a time
        return first

    def _unpacked(self, first: bytes, least: int, read: Callable[..., bytes], depth: int) -> Iterator[bytes]:
        whole = depth == NESTED  # the source itself, and not what is in an archive
        seekable = whole and self.raw.seekable()
        first = self._without_skippable(first, read)
        kind = format_of(first)
        self.packed = self.packed or bool(kind)
        for magic, (what, hint) in _UNREAD.items():
            if first.startswith(magic):
                raise StepscopeError(f"{self.name} is {what}, which is not read", hint=hint)
        if kind == "zip":
            return self._from_zip(least, depth, seekable=seekable)
        if kind == "lz4":
            return self._from_lz4(first, read)
        if kind == "gzip":
            if seekable and (fast := _fast_gzip_file()):
                return self._whole_gzip(fast)
            return self._inflate(first, read, _gzip_decoder)
        if kind:
            make = {"zstd": _zstd_decoder, "xz": _xz_decoder, "bzip2": _bzip2_decoder}[kind]()
            if seekable:
                return self._inflate(first, read, make, again=self._rescue)
            # A pipe cannot be read twice: the less is fed at once, the less is lost with the call that fails.
            small = _small(first, read)
            return self._inflate(next(small), lambda: next(small, b""), make)
        return _plain(first, read)

    def _without_skippable(self, data: bytes, read: Callable[..., bytes]) -> bytes:
        """What follows leading frames that zstd and lz4 skip: some writers put an index or a name there."""
        while len(data) >= 8 and _is_skippable(data):
            left = 8 + int.from_bytes(data[4:8], "little")
            while len(data) < left and data:
                left -= len(data)
                data = read()
            data = data[left:]
            while len(data) < 8 and (more := read()):
                data += more
        return data

    def _whole_gzip(self, fast: Callable[..., Any]) -> Iterator[bytes]:
        """The fast way; a broken file is read once more, with care."""
        self.raw.seek(0)
        file = fast(fileobj=self.raw)
        given = 0
        while True:
            try:
                piece = file.read1(PIECE)  # straight into the piece; readinto would copy it once more
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - whatever is wrong, the careful way finds out and says it
                interrupts.pass_on()
                self.raw.seek(0)
                self.read_bytes = 0
                yield from _after(given, self._inflate(self.read(), self.read, _gzip_decoder))
                return
            self.read_bytes = self.raw.tell()
            if not piece:
                return
            given += len(piece)
            yield piece

    def _rescue(self, make: Callable[[], Any], given: int, whole_until: int) -> Iterator[bytes]:
        """What comes after the first `given` bytes, when the input is fed byte by byte from some place on."""
        self.raw.seek(0)
        self.read_bytes = 0
        careful = self._careful_reads(whole_until)
        first = self._without_skippable(next(careful, b""), lambda: next(careful, b""))
        yield from _after(given, self._inflate(first, lambda: next(careful, b""), make))

    def _careful_reads(self, whole_until: int) -> Iterator[bytes]:
        while piece := self.read():
            if self.read_bytes <= whole_until:
                yield piece
            else:
                yield from (piece[at : at + 1] for at in range(len(piece)))

    def _inflate(
        self,
        data: bytes,
        read: Callable[..., bytes],
        make: Callable[[], Any],
        again: Callable[[Callable[[], Any], int, int], Iterator[bytes]] | None = None,
    ) -> Iterator[bytes]:
        """Members or frames one after the other; what follows the last whole one is damage."""
        decoder, given = make(), 0
        until = self.read_bytes - len(data)
        while True:
            before = decoder.copy() if hasattr(decoder, "copy") else None
            try:
                piece = decoder.decompress(data, PIECE)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - each library has an error class of its own
                interrupts.pass_on()
                if again:
                    yield from again(make, given, until)
                    return
                self._say(str(error))
                rest = yield from _byte_by_byte(before, data)
                if rest is None or not (data := rest or read()):
                    return
                decoder = make()
                continue
            if piece:
                given += len(piece)
                yield piece
            if decoder.eof:
                if not (data := self._next_member(decoder.unused_data, read)):
                    return
                decoder = make()
                continue
            data = getattr(decoder, "unconsumed_tail", b"")
            if not data and getattr(decoder, "needs_input", True):
                until = self.read_bytes
                data = read()
                if not data:
                    self.broken = f"the compressed stream ends too early, after {self.read_bytes:,} bytes"
                    self.cut = True
                    return

    def _next_member(self, data: bytes, read: Callable[..., bytes]) -> bytes:
        """What follows a member, if it is another one; something else is damage."""
        # Padding with zeros after a member is common and harmless.
        while len(data := data.lstrip(b"\0")) < 6 and (more := read()):
            data += more
        if data and not format_of(data) and not _is_skippable(data):
            self.broken = f"something that is not compressed follows the end, near byte {self.read_bytes:,}"
            return b""
        return data

    def _say(self, error: str) -> None:
        """Names what is wrong: a checksum, or the data."""
        if "check" in error and "header check" not in error:
            self.broken = (
                f"the checksum of the compressed data is wrong, near byte {self.read_bytes:,}: {error}"
            )
        else:
            self.broken = f"the compressed stream is broken near byte {self.read_bytes:,}: {error}"
            self.cut = True

    def _from_lz4(self, first: bytes, read: Callable[..., bytes]) -> Iterator[bytes]:
        """By pyarrow, which has the library."""
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.PythonFile(_Rest(first, read), mode="r"), "lz4")
        while True:
            try:
                piece = stream.read(PIECE >> 3)
            except (pa.ArrowException, OSError) as error:
                self.broken = f"the compressed stream is broken near byte {self.read_bytes:,}: {error}"
                if "runcated" in str(error):
                    self.broken = f"the compressed stream ends too early, after {self.read_bytes:,} bytes"
                self.cut = True
                return
            if not piece:
                return
            yield piece

    def _from_zip(self, least: int, depth: int, *, seekable: bool) -> Iterator[bytes]:
        if not seekable:
            raise StepscopeError(
                f"{self.name} is a zip archive in a pipe or an archive",
                hint="unzip -p FILE | stepscope report -",
            )
        self.raw.seek(0)
        member = open_member(self.raw, self.name)
        taken = iter(_plain(member.read(READ), member.read) if member.stored else self._deflated(member))
        checked = self._checked(taken, member.crc)
        first = b""
        while len(first) < least and (more := next(checked, b"")):
            first += more
        return self._unpacked(first, least, lambda *_: next(checked, b""), depth - 1)

    def _deflated(self, member: Any) -> Iterator[bytes]:
        return self._inflate(member.read(READ), member.read, lambda: _OneMember(-15))

    def _checked(self, pieces: Iterator[bytes], crc: int) -> Iterator[bytes]:
        found = 0
        for piece in pieces:
            found = zlib.crc32(piece, found)
            yield piece
        if found != crc and not self.broken:
            self.broken = "the checksum in the zip archive is wrong"


class _OneMember:
    """Raw deflate data, of which nothing follows."""

    def __init__(self, bits: int) -> None:
        self._decoder = zlib.decompressobj(bits)
        self.unused_data = b""

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._decoder.decompress(data, most)

    @property
    def unconsumed_tail(self) -> bytes:
        return self._decoder.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def copy(self) -> Any:
        return self._decoder.copy()


class _Rest:
    """A file of what was read already and what is yet to be read."""

    closed = False

    def __init__(self, first: bytes, read: Callable[..., bytes]) -> None:
        self._first = first
        self._read = read

    def read(self, size: int = READ) -> bytes:
        piece = self._first or self._read()
        self._first = piece[size:]
        return piece[:size]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None: ...


def _plain(first: bytes, read: Callable[..., bytes]) -> Iterator[bytes]:
    piece = first
    while piece:
        yield piece
        piece = read(PIECE)


def _small(first: bytes, read: Callable[..., bytes]) -> Iterator[bytes]:
    piece = first
    while piece:
        yield from (piece[at : at + _SMALL] for at in range(0, len(piece), _SMALL))
        piece = read()


def _after(given: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What comes after the first bytes, which were given out before."""
    for piece in pieces:
        if given < len(piece):
            yield piece[given:]
        given = max(0, given - len(piece))


def _byte_by_byte(decoder: Any, data: bytes) -> Any:
    """What a decoder still gives before it fails; returns what follows a member whose checksum is wrong."""
    if decoder is None:
        return None
    for at in range(len(data)):
        try:
            piece = decoder.decompress(data[at : at + 1])
        except zlib.error as error:
            # The checksum comes before the length, of four bytes too.
            length = {"incorrect data check": 4, "incorrect length check": 0}
            left = next((more for why, more in length.items() if why in str(error)), None)
            return None if left is None else data[at + 1 + left :]
        if piece:
            yield piece
    return None


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


def _xz_decoder() -> Callable[[], Any]:
    import lzma

    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)


def _bzip2_decoder() -> Callable[[], Any]:
    import bz2

    return bz2.BZ2Decompressor
