"""Bytes from anywhere: plain, gzip, zstd, pipes and URLs, whole and damaged."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import fsspec
import pytest
from tests.drawing import zstd_compress

from stepscope import streams
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
    monkeypatch.setattr(streams, "PIECE", piece)
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


def test_a_wrong_checksum_is_damage(tmp_path: Path) -> None:
    raw = bytearray(gzip.compress(TEXT, mtime=0))
    raw[-8] ^= 0xFF
    found, broken = read(written(tmp_path / "a", bytes(raw)))
    assert found in (TEXT, TEXT[: len(found)])
    assert "broken" in broken


def test_what_follows_the_last_member_is_damage(tmp_path: Path) -> None:
    found, broken = read(written(tmp_path / "a", gzip.compress(TEXT, mtime=0) + b"rubbish"))
    assert found == TEXT
    assert "broken" in broken


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
