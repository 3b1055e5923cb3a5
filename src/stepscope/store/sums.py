"""Checksums of the files of a store: written with it, and compared before a file is first read.

A checksum covers every byte of a file, also those that a checksum of Parquet's pages leaves out: the headers
of pages and the description at the end of the file, from which a reader takes where everything else is.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepscope.errors import StepscopeError
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SUMS", "DamagedStore", "FileSum", "StoreFiles", "read_sums", "say", "sum_of", "write_sums"]

Seen = TypeVar("Seen")

SUMS = "sums.txt"
_HEAD = "stepscope sums 1"
_LINE = late_pattern(r"(\S+) (\d+) ([0-9a-f]{8}) (\d+) ([0-9a-f]{8})")
_PIECE = 1 << 20


class DamagedStore(StepscopeError):  # noqa: N818  # it names what is there, as the message does
    """A file of a store is not as it was written."""

    def __init__(self, folder: Path, file: str, what: str) -> None:
        super().__init__(
            f"the store {folder} is damaged: {file} {what}",
            hint=f"remove it and ingest again: rm -r {folder}",
        )
        self.file = file


@dataclass(frozen=True, slots=True)
class FileSum:
    """The size and the CRC-32 of a file, and of the description at its end if it is Parquet."""

    bytes: int
    crc: int
    tail_bytes: int = 0
    tail_crc: int = 0


def say(line: str) -> None:
    """A line for the user: on standard error, unless a program that uses stepscope wants it elsewhere."""
    import logging

    logging.getLogger("stepscope").warning("stepscope: %s", line)


def _crc32() -> Callable[[bytes | memoryview, int], int]:
    try:
        from isal.isal_zlib import crc32
    except ImportError:  # no wheel for this machine: zlib gives the same number, slower
        return zlib.crc32
    return crc32


def sum_of(path: Path) -> FileSum:
    """Reads a file through."""
    crc32 = _crc32()
    size = crc = 0
    with path.open("rb", buffering=0) as file:
        room = memoryview(bytearray(min(os.fstat(file.fileno()).st_size + 1, _PIECE)))
        while read := file.readinto(room):
            crc = crc32(room[:read], crc)
            size += read
        if path.suffix != ".parquet" or size < 12:
            return FileSum(size, crc)
        file.seek(size - 8)
        tail_bytes = min(int.from_bytes(file.read(4), "little") + 8, size)
    return FileSum(size, crc, tail_bytes, _tail_crc(path, size, tail_bytes))


def _tail_crc(path: Path, size: int, tail_bytes: int) -> int:
    with path.open("rb", buffering=0) as file:
        file.seek(size - tail_bytes)
        return _crc32()(file.read(tail_bytes), 0)


def write_sums(target: Path, files: Mapping[str, FileSum]) -> None:
    """Writes checksums to a file, which begins with its own."""
    lines = [
        f"{name} {one.bytes} {one.crc:08x} {one.tail_bytes} {one.tail_crc:08x}"
        for name, one in sorted(files.items())
    ]
    text = "".join(f"{line}\n" for line in lines)
    target.write_text(f"{_HEAD} {zlib.crc32(text.encode()):08x}\n{text}", encoding="ascii")


def read_sums(path: Path) -> dict[str, FileSum] | None:
    """The checksums in a file; None for one that is not as it was written."""
    head, _, text = path.read_bytes().decode("ascii", "replace").partition("\n")
    if head != f"{_HEAD} {zlib.crc32(text.encode()):08x}":
        return None
    found = [_LINE.fullmatch(line) for line in text.splitlines()]
    return {
        one[1]: FileSum(int(one[2]), int(one[3], 16), int(one[4]), int(one[5], 16)) for one in found if one
    }


class StoreFiles:
    """The files of a store. Each is compared with its checksum once, before it is first read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sums = self._listed()
        self._whole: set[str] = set()
        self._locks = {name: threading.Lock() for name in self.sums}

    def _listed(self) -> dict[str, FileSum]:
        found = self._seen(SUMS, read_sums)
        if found is None:
            raise DamagedStore(self.folder, SUMS, "is not as it was written")
        return found

    def _seen(self, name: str, look: Callable[[Path], Seen]) -> Seen:
        try:
            return look(self.folder / name)
        except FileNotFoundError:
            raise DamagedStore(self.folder, name, "is missing") from None
        except OSError as error:
            raise DamagedStore(self.folder, name, f"cannot be read: {error.strerror or error}") from error

    def check_sizes(self) -> None:
        """Compares how long all files are, which costs next to nothing."""
        for name, one in self.sums.items():
            if self._seen(name, lambda path: path.stat().st_size) != one.bytes:
                raise DamagedStore(self.folder, name, "is not as long as it was")

    def check(self, names: Iterable[str]) -> None:
        """Compares files that were not compared yet; an error for one that is not as it was written."""
        for name in names:
            if name in self._whole:
                continue
            with self._lock_of(name):
                if name not in self._whole:
                    self._compare(name, self._seen(name, sum_of))

    def check_ends(self, small: int) -> None:
        """Compares small tables, and of large ones the description at the end, which is read before rows."""
        for name, one in self.sums.items():
            if not name.endswith(".parquet"):
                continue
            if one.bytes < small:
                self.check([name])
            elif name not in self._whole and self._tail(name, one) != one.tail_crc:
                raise DamagedStore(self.folder, name, "does not have its checksum")

    def _tail(self, name: str, one: FileSum) -> int:
        return self._seen(name, lambda path: _tail_crc(path, one.bytes, one.tail_bytes))

    def read(self, name: str) -> bytes:
        """All bytes of a small file, which are compared."""
        with self._lock_of(name):
            raw = self._seen(name, Path.read_bytes)
            self._compare(name, FileSum(len(raw), _crc32()(raw, 0)))
            return raw

    def arrow(self, name: str) -> pa.RecordBatchFileReader:
        """An Arrow file, read and not mapped: one that is cut short while it is mapped ends the process."""
        import pyarrow as pa

        return pa.ipc.open_file(pa.py_buffer(self.read(f"{name}.arrow")))

    def _lock_of(self, name: str) -> threading.Lock:
        if name not in self._locks:
            raise DamagedStore(self.folder, name, "has no checksum")
        return self._locks[name]

    def _compare(self, name: str, found: FileSum) -> None:
        if (found.bytes, found.crc) != (self.sums[name].bytes, self.sums[name].crc):
            raise DamagedStore(self.folder, name, "does not have its checksum")
        self._whole.add(name)
