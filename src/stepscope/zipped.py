"""The one file in a zip archive that is meant, read as a stream."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import BinaryIO

from stepscope.errors import StepscopeError
from stepscope.records import dataclass

__all__ = ["Member", "open_member"]

_DIRECTORY_BYTES = 4 << 20
"""An archive of more names than this has is no profile; each of them would take memory."""
_LOCAL = struct.Struct("<4s22xHH")
_STORED, _DEFLATED = 0, 8


@dataclass
class Member:
    """One file of an archive: its compressed bytes, and how they are compressed."""

    raw: BinaryIO
    left: int
    stored: bool
    crc: int

    def read(self, size: int = 1 << 15) -> bytes:
        """The next bytes, as they are in the archive."""
        piece = self.raw.read(min(size, self.left))
        self.left -= len(piece)
        return piece


def open_member(raw: BinaryIO, name: str) -> Member:
    """The only file of an archive, or the only one that is JSON by its name."""
    unzip = f"unzip -p {name} MEMBER | stepscope report -"
    _check_directory(raw, name)
    try:
        with zipfile.ZipFile(raw) as archive:
            files = [one for one in archive.infolist() if not one.is_dir()]
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise StepscopeError(
            f"{name} is a zip archive that cannot be read: {error}", hint=f"zip -FF {name} --out fixed.zip"
        ) from error
    named = [one for one in files if ".json" in one.filename.lower()]
    chosen = files if len(files) == 1 else named
    if len(chosen) != 1:
        names = ", ".join(one.filename[:80] for one in files[:4])
        raise StepscopeError(
            f"{name} is a zip archive of {len(files)} files ({names}{', …' if len(files) > 4 else ''}), "
            "and it is not clear which is meant",
            hint=unzip,
        )
    one = chosen[0]
    if one.flag_bits & 1:
        raise StepscopeError(f"{name} is encrypted", hint=f"unzip -P PASSWORD -p {name} | stepscope report -")
    if one.compress_type not in (_STORED, _DEFLATED):
        raise StepscopeError(f"{name} is compressed in a way that is not read", hint=unzip)
    raw.seek(one.header_offset)
    head = raw.read(_LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise StepscopeError(f"{name} is a damaged zip archive", hint=f"zip -FF {name} --out fixed.zip")
    _, name_bytes, extra_bytes = _LOCAL.unpack(head)
    raw.seek(name_bytes + extra_bytes, os.SEEK_CUR)
    return Member(raw, one.compress_size, one.compress_type == _STORED, one.CRC)


def _check_directory(raw: BinaryIO, name: str) -> None:
    """Refuses a list of files that is too long, before it is read."""
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - (1 << 16) - 22))
    tail = raw.read((1 << 16) + 22)
    at = tail.rfind(b"PK\x05\x06")
    listed = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    wide = tail.rfind(b"PK\x06\x06", 0, max(at, 0))  # the same for large archives
    if wide >= 0:
        listed = max(listed % 0xFFFFFFFF, int.from_bytes(tail[wide + 40 : wide + 48], "little"))
    if listed > _DIRECTORY_BYTES:
        raise StepscopeError(
            f"{name} is a zip archive of too many files", hint=f"unzip -p {name} MEMBER | stepscope report -"
        )
    raw.seek(0)
