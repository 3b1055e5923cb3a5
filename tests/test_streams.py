"""Bytes from anywhere: plain, gzip, zstd, pipes and URLs, whole and damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from tests.drawing import zstd_compress

from stepscope import streams, unpacking
from stepscope.errors import StepscopeError
from stepscope.streams import open_stream

TEXT = b"".join(b'{"n": %d, "x": "%d"}\n' % (n, n * n) for n in range(60_000))


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def read(path: Path) -> tuple[bytes, str]:
    stream = open_stream(str(path))
    return b"".join(map(bytes, stream)), stream.broken


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    "raw",
    [
        TEXT,
        gzip.compress(TEXT, 1, mtime=0),
        gzip.compress(TEXT[:1000], mtime=0) + gzip.compress(TEXT[1000:], 1, mtime=0),
        b"".join(gzip.compress(TEXT[at : at + 50_000], 1, mtime=0) for at in range(0, len(TEXT), 50_000)),
        gzip.compress(TEXT, 1, mtime=0) + bytes(512),
        zstd_compress(TEXT),
        b"".join(zstd_compress(TEXT[at : at + 50_000]) for at in range(0, len(TEXT), 50_000)),
    ],
    ids=["plain", "gzip", "two members", "many members", "padding", "zstd", "many frames"],
)
def test_all_bytes_arrive_whatever_the_name(raw: bytes, tmp_path: Path) -> None:
    assert read(written(tmp_path / "named.txt", raw)) == (TEXT, "")


def test_the_head_is_not_used_up(tmp_path: Path) -> None:
    stream = open_stream(str(written(tmp_path / "a", gzip.compress(TEXT, mtime=0))))
    assert stream.head(10) == stream.head(10) == TEXT[:10]
    assert b"".join(map(bytes, stream)) == TEXT
    assert stream.read_bytes == stream.size == (tmp_path / "a").stat().st_size


@pytest.mark.parametrize("piece", [1, 7, 64, 300])
@pytest.mark.parametrize("packed", [gzip.compress, zstd_compress])
def test_no_byte_is_lost_where_pieces_end(
    piece: int, packed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(packed)
    monkeypatch.setattr(unpacking, "PIECE", piece)
    for size in range(0, 3 * piece + 2, max(1, piece // 20)):
        for raw in (noise(size), bytes(size)):
            assert read(written(tmp_path / "a", packed(raw))) == (raw, "")


def test_slower_without_isal_and_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    raw = gzip.compress(TEXT, mtime=0) + gzip.compress(b"more", mtime=0)
    assert read(written(tmp_path / "a", raw)) == (TEXT + b"more", "")


@pytest.mark.parametrize("packed", [gzip.compress, zstd_compress])
@pytest.mark.parametrize("share", [0.0001, 0.1, 0.5, 0.9, 0.99999])
def test_a_cut_stream_gives_what_came_before(packed: object, share: float, tmp_path: Path) -> None:
    assert callable(packed)
    raw = packed(TEXT)
    found, broken = read(written(tmp_path / "a", raw[: int(len(raw) * share)]))
    assert TEXT.startswith(found)
    # A format may keep a block to itself until it has it whole.
    assert len(found) >= len(TEXT) * share - (1 << 18)
    assert "ends too early" in broken


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_flipped_byte_ends_the_reading_there(at: float, tmp_path: Path) -> None:
    raw = bytearray(gzip.compress(TEXT, mtime=0))
    raw[int(len(raw) * at)] ^= 0xFF
    found, broken = read(written(tmp_path / "a", bytes(raw)))
    assert "the compressed stream is broken near byte" in broken or found != TEXT
    assert len(found) > len(TEXT) * at * 0.5
    assert broken


@pytest.mark.parametrize("at,why", [(-8, "data check"), (-4, "length check")])
def test_a_wrong_checksum_is_called_so_and_loses_nothing(at: int, why: str, tmp_path: Path) -> None:
    """Also where another member follows, and where nobody can read the file twice."""
    raw = bytearray(gzip.compress(TEXT, mtime=0))
    raw[at] ^= 0xFF
    more = gzip.compress(b"more", mtime=0)
    for wrong, expected in ((bytes(raw), TEXT), (bytes(raw) + more, TEXT + b"more")):
        for stream in (open_stream(str(written(tmp_path / "a", wrong))), piped(wrong)):
            assert b"".join(map(bytes, stream)) == expected
            assert stream.broken.startswith("the checksum of the compressed data is wrong")
            assert why in stream.broken
            assert not stream.cut


def test_what_follows_the_last_member_is_damage_and_cuts_nothing(tmp_path: Path) -> None:
    for packed in (gzip.compress, zstd_compress, lzma.compress, bz2.compress):
        stream = open_stream(str(written(tmp_path / "a", packed(TEXT[:9999]) + b"rubbish")))
        assert b"".join(map(bytes, stream)) == TEXT[:9999]
        assert "something that is not compressed follows the end" in stream.broken, packed
        assert not stream.cut


# ------------------------------------------------ other formats


def lz4_compress(raw: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as file:
        file.write(raw)
    return bytes(sink.getvalue())


def stored_in_zip(raw: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("trace", raw)
    return file.getvalue()


def zip_compress(raw: bytes, name: str = "trace.json", **others: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, raw)
        for other, text in others.items():
            archive.writestr(other, text)
    return file.getvalue()


SHORT = TEXT[:600_000]
SKIPPED = b"\x5a\x2a\x4d\x18" + (70_000).to_bytes(4, "little") + bytes(70_000)
FORMATS: dict[str, Callable[[bytes], bytes]] = {
    "xz": lambda raw: lzma.compress(raw, preset=0),
    "bzip2": bz2.compress,
    "lz4": lz4_compress,
    "zip": zip_compress,
    "stored in zip": stored_in_zip,
    "two xz": lambda raw: lzma.compress(raw[:1000]) + lzma.compress(raw[1000:], preset=0),
    "two bzip2": lambda raw: bz2.compress(raw[:1000]) + bz2.compress(raw[1000:]),
    "two lz4": lambda raw: lz4_compress(raw[:1000]) + lz4_compress(raw[1000:]),
    "skippable zstd": lambda raw: SKIPPED + SKIPPED[:3] + b"\x18\0\0\0\0" + zstd_compress(raw),
    "skippable lz4": lambda raw: SKIPPED + lz4_compress(raw),
    "gzip in zip": lambda raw: zip_compress(gzip.compress(raw, mtime=0), "trace.json.gz"),
    "one JSON in zip": lambda raw: zip_compress(raw, "run/trace.json", notes=b"mine", picture=b"x"),
}


def piped(raw: bytes) -> streams.ByteStream:
    """A stream that cannot be read twice."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError("Illegal seek")

    return streams.ByteStream("a pipe", Pipe(raw), None)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read(name: str, tmp_path: Path) -> None:
    raw = FORMATS[name](SHORT)
    assert read(written(tmp_path / "named.txt", raw)) == (SHORT, "")
    if "zip" not in name or "bzip2" in name:
        stream = piped(raw)
        assert b"".join(map(bytes, stream)) == SHORT
        assert not stream.broken
        assert stream.packed


@pytest.mark.parametrize("name", ["zstd", "xz", "bzip2", "lz4", "zip"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.6, 0.95])
def test_a_cut_or_wrong_byte_keeps_what_came_before(name: str, share: float, tmp_path: Path) -> None:
    """A decoder that gets byte after byte gives all that can be had before the damage."""
    packed = {"zstd": zstd_compress, **FORMATS}[name]
    raw = packed(SHORT)
    at = 40 + int(len(raw) * share)
    wrong = raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :]
    decoders = {
        "zstd": unpacking._zstd_decoder(),
        "xz": unpacking._xz_decoder(),
        "bzip2": unpacking._bzip2_decoder(),
    }
    possible = 0
    if name in decoders:
        decoder = decoders[name]()
        possible = sum(len(decoder.decompress(raw[n : n + 1])) for n in range(at))
    found, broken = read(written(tmp_path / "a", wrong))
    assert found[:possible] == SHORT[:possible]
    if name not in ("zstd", "lz4"):  # which were written without a checksum
        assert broken
    if name == "zip":  # which has its list of files at the end
        return
    assert len(b"".join(map(bytes, piped(wrong)))) >= possible - (1 << 18)
    found, broken = read(written(tmp_path / "a", raw[:at]))
    assert len(found) >= possible
    assert SHORT.startswith(found)
    assert "ends too early" in broken


@pytest.mark.parametrize(
    "raw,message,hint",
    [
        (
            zip_compress(TEXT, "a.json", **{"b.json": TEXT}),
            "a zip archive of 2 files (a.json, b.json)",
            "unzip -p",
        ),
        (zip_compress(TEXT, "a", b=TEXT), "it is not clear which is meant", "unzip -p"),
        (zip_compress(TEXT)[:-40], "a zip archive that cannot be read", "zip -FF"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(100), "is a 7z archive", "7z e -so"),
        (b"Rar!\x1a\x07" + bytes(100), "is a rar archive", "unrar"),
        (b"\x02\x21\x4c\x18" + bytes(100), "lz4's old format", "lz4 -dc"),
    ],
)
def test_what_cannot_be_unpacked_is_named(raw: bytes, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(StepscopeError) as found:
        read(written(tmp_path / "a", raw))
    assert message in found.value.message
    assert hint in found.value.hint


def test_a_zip_in_a_pipe_says_what_to_type() -> None:
    with pytest.raises(StepscopeError, match="zip archive in a pipe") as found:
        piped(zip_compress(TEXT)).head()
    assert "unzip -p" in found.value.hint


def test_a_zip_of_millions_of_names_is_refused(tmp_path: Path) -> None:
    raw = bytearray(zip_compress(TEXT))
    raw[-10:-6] = (5 << 20).to_bytes(4, "little")
    with pytest.raises(StepscopeError, match="too many files"):
        read(written(tmp_path / "a", bytes(raw)))


def test_a_wrong_checksum_in_a_zip_is_called_so(tmp_path: Path) -> None:
    raw = bytearray(zip_compress(TEXT))
    at = raw.rindex(b"PK\x01\x02") + 16
    raw[at] ^= 0xFF
    assert read(written(tmp_path / "a", bytes(raw))) == (TEXT, "the checksum in the zip archive is wrong")


def test_an_xz_that_wants_all_memory_is_refused_by_its_decoder(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    found, broken = read(written(tmp_path / "a", lzma.compress(TEXT[:100], filters=filters)))
    assert found == b""
    assert "emory" in broken


@pytest.mark.parametrize("blanks", [b" " * 5000, b"\n" * 2_000_000, b"\r\n\t " * 999])
def test_blanks_before_the_text_are_no_matter(blanks: bytes, tmp_path: Path) -> None:
    for raw in (blanks + TEXT, gzip.compress(blanks + TEXT, mtime=0), zstd_compress(blanks + TEXT)):
        stream = open_stream(str(written(tmp_path / "a", raw)))
        assert stream.head(10) == TEXT[:10]
        assert b"".join(map(bytes, stream)) == blanks + TEXT


def test_endless_blanks_are_given_up(tmp_path: Path) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            assert self.given < 100 << 20
            return b" " * size

    assert streams.ByteStream("endless", Endless(), None).head() == b""  # type: ignore[arg-type]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = written(tmp_path / "a", TEXT)
    for change in (b"", b"more"):
        stream = open_stream(str(path))
        assert stream.head(3) == TEXT[:3]
        with path.open("ab") as file:
            file.write(change)
        assert b"".join(map(bytes, stream)).startswith(TEXT)
        assert stream.changed == bool(change)


def test_a_reader_may_stop_early(tmp_path: Path) -> None:
    before = threading.active_count()
    pieces = iter(open_stream(str(written(tmp_path / "a", gzip.compress(noise(1 << 22), 0, mtime=0)))))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_an_error_of_the_source_reaches_the_reader(tmp_path: Path) -> None:
    class Failing:
        def __init__(self) -> None:
            self.left = 3

        def read(self, size: int) -> bytes:
            self.left -= 1
            if not self.left:
                raise OSError(5, "Input/output error")
            return noise(size)

        def seekable(self) -> bool:
            return False

        def close(self) -> None: ...

    with pytest.raises(OSError, match="Input/output"):
        list(streams.ByteStream("failing", Failing(), None))  # type: ignore[arg-type]


def test_a_pipe_that_gives_byte_after_byte(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    raw = gzip.compress(TEXT[:100], mtime=0)

    def write() -> None:
        with fifo.open("wb", buffering=0) as file:
            for byte in raw:
                file.write(bytes([byte]))

    writer = threading.Thread(target=write)
    writer.start()
    assert read(fifo) == (TEXT[:100], "")
    writer.join()


def test_standard_input() -> None:
    code = "from stepscope.streams import open_stream; print(sum(map(len, open_stream('-'))))"
    for raw in (TEXT, gzip.compress(TEXT, mtime=0)):
        done = subprocess.run([sys.executable, "-c", code], input=raw, capture_output=True, check=True)
        assert int(done.stdout) == len(TEXT)


@pytest.mark.filterwarnings("default::ResourceWarning")
def test_a_url_by_fsspec() -> None:
    with fsspec.open("memory://streams/a.json.gz", "wb") as file:
        file.write(gzip.compress(TEXT, mtime=0))
    stream = open_stream("memory://streams/a.json.gz")
    assert b"".join(map(bytes, stream)) == TEXT
    assert stream.name == "memory://streams/a.json.gz"


@pytest.mark.parametrize(
    "source,message,hint",
    [
        ("{}/trcae.json", "there is no file {}/trcae.json", "did you mean {}/trace.json?"),
        ("{}/zzz", "there is no file {}/zzz", "ls {}"),
        ("{}/no/such.json", "there is no file", "there is no folder {}/no either"),
        ("{}/trace.json/a", "there is no file", "there is no folder"),
        ("{}", "{} is a folder", "name a trace in it"),
        ("{}/" + "n" * 300, "cannot be opened: File name too long", "check the name"),
        ("{}/\0", "cannot be opened", "check the name"),
        ("memory://streams/none.json", "there is no file memory://streams/none.json", "check the address"),
        ("nosuch://a/b.json", "cannot be opened: Protocol not known: nosuch", "fsspec"),
        ("file://{}", "cannot be opened", "check the address"),
    ],
)
def test_what_cannot_be_opened(source: str, message: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(StepscopeError) as found:
        open_stream(source.replace("{}", str(tmp_path)))
    assert message.replace("{}", str(tmp_path)) in found.value.message
    assert hint.replace("{}", str(tmp_path)) in found.value.hint


def test_a_url_without_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(StepscopeError, match="needs fsspec") as found:
        open_stream("memory://a")
    assert 'pip install "stepscope[remote]"' in found.value.hint
