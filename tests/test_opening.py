"""From a profile to a trace: what is found, what is refused, and that nothing half-made stays."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import resource
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
import pytest
from tests.commands import (
    PATIENCE_S,
    SLOW_ITEM,
    STEPSCOPE,
    environment,
    half_read,
    leftovers,
    obey_permissions,
    said,
    stepscope,
)
from tests.drawing import Drawing, zstd_compress

from stepscope.errors import StepscopeError
from stepscope.opening import open_trace
from stepscope.schema import FORMAT
from stepscope.sources import Input, SourceMeta
from stepscope.store.trace import Trace

DRAWN = Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 2, 1, corr=7).kernel("gemm", 5, 3, corr=7)
TEXT = DRAWN.json().encode()


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """The path of a socket is short; contextlib has this from Python 3.11 on."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def is_whole(trace: Trace) -> bool:
    return bool(trace.arrow("SELECT count(*) AS n FROM events")["n"][0].as_py() == trace.meta.events > 0)


class TestWhatIsOpened:
    @pytest.mark.parametrize(
        "name,raw",
        [
            ("a.json", TEXT),
            ("a.json.gz", gzip.compress(TEXT, mtime=0)),
            ("a.json.gz", gzip.compress(TEXT[:300], mtime=0) + gzip.compress(TEXT[300:], mtime=0)),
            ("a.json.zst", zstd_compress(TEXT[:300]) + zstd_compress(TEXT[300:])),
            ("renamed", gzip.compress(TEXT, mtime=0)),
            ("list.json", json.dumps(DRAWN.events).encode()),
            ("bom.json", b"\xef\xbb\xbf" + TEXT),
        ],
    )
    def test_a_file(self, name: str, raw: bytes, tmp_path: Path, stores: Path) -> None:
        trace = open_trace(written(tmp_path / name, raw))
        assert trace.meta.events == 3
        assert is_whole(trace)
        assert trace.folder.parent == stores
        assert not trace.meta.damage

    @pytest.mark.parametrize(
        "name,raw",
        [
            ("a.json.xz", lzma.compress(TEXT)),
            ("a.json.bz2", bz2.compress(TEXT)),
            ("blanks.json", b" " * 5000 + TEXT),
            ("lines.json.gz", gzip.compress(b"\n" * 200_000 + TEXT, mtime=0)),
            ("bom.json", b"\xef\xbb\xbf" + b" " * 5000 + TEXT),
            ("skippable.zst", b"\x50\x2a\x4d\x18\3\0\0\0abc" + zstd_compress(TEXT)),
            ("escaped.json", TEXT.replace(b'"traceEvents"', b'"trace\\u0045vents"')),
            ("escaped.json", TEXT.replace(b'"ts"', b'"\\u0074s"').replace(b'"dur"', b'"d\\u0075r"')),
        ],
    )
    def test_what_only_looks_odd(self, name: str, raw: bytes, tmp_path: Path, stores: Path) -> None:
        trace = open_trace(written(tmp_path / name, raw))
        assert trace.arrow("SELECT sum(dur_ns)::BIGINT AS ns FROM events")["ns"][0].as_py() == 14_000
        assert trace.meta.events == 3
        assert not trace.meta.damage

    def test_a_wrong_checksum_is_no_cut(self, tmp_path: Path, stores: Path) -> None:
        raw = bytearray(gzip.compress(TEXT, mtime=0))
        raw[-6] ^= 1
        trace = open_trace(written(tmp_path / "a.json.gz", bytes(raw)))
        assert trace.meta.events == 3
        (damage,) = trace.meta.damage
        assert damage.reason.startswith("the checksum of the compressed data is wrong")

    def test_a_name_that_is_not_text(self, tmp_path: Path, stores: Path) -> None:
        path = os.fsencode(tmp_path) + b"/caf\xe9.json"
        try:
            Path(os.fsdecode(path)).write_bytes(TEXT)
        except OSError:
            pytest.skip("this file system has only names that are text")
        trace = open_trace(os.fsdecode(path))
        assert trace.path == f"{tmp_path}/caf\\udce9.json"
        for command in ("info", "report"):
            found = subprocess.run(
                [*STEPSCOPE, command, path], env=environment(stores), capture_output=True, check=False
            )
            assert found.returncode == 0, found.stderr

    def test_a_file_that_is_written_to_meanwhile_is_told(self, tmp_path: Path, stores: Path) -> None:
        file = written(tmp_path / "a.json", TEXT)

        def write_more(*_: object) -> None:
            with file.open("ab") as more:
                more.write(b"\n")

        trace = open_trace(file, progress=write_more)
        assert not trace.meta.damage  # read whole before the first word about it
        given = Input(str(file))
        assert given.head
        write_more()
        told = given.completed(SourceMeta(), "kineto").damage
        assert [one.reason for one in told] == [
            "the file was written to while it was read: it may be half old and half new"
        ]
        given.close()

    def test_the_one_trace_of_a_folder(self, tmp_path: Path, stores: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "notes.txt").write_text("mine")
        file = DRAWN.write(tmp_path / "run" / "a.json.gz")
        assert open_trace(tmp_path / "run").path == str(file)

    def test_a_store_in_place_of_a_profile(self, tmp_path: Path, stores: Path) -> None:
        made = open_trace(DRAWN.write(tmp_path / "a.json"), store=tmp_path / "mine")
        assert made.folder.parent == tmp_path / "mine"
        (tmp_path / "a.json").unlink()
        assert is_whole(open_trace(made.folder))
        assert not leftovers(stores)

    def test_a_url(self, tmp_path: Path, stores: Path) -> None:
        with fsspec.open("memory://opening/a.json.gz", "wb") as file:
            file.write(gzip.compress(TEXT, mtime=0))
        first = open_trace("memory://opening/a.json.gz")
        assert is_whole(first)
        assert open_trace("memory://opening/a.json.gz").folder == first.folder
        with fsspec.open("memory://opening/a.json.gz", "wb") as file:
            file.write(gzip.compress(TEXT, mtime=0))
        assert open_trace("memory://opening/a.json.gz").folder != first.folder

    def test_standard_input_and_a_named_pipe(self, tmp_path: Path, stores: Path) -> None:
        given = stepscope("info", "-", cache=stores, input=TEXT.decode())
        assert given.returncode == 0, given.stderr
        os.mkfifo(tmp_path / "fifo")
        reading = subprocess.Popen(
            [*STEPSCOPE, "info", str(tmp_path / "fifo")], env=environment(stores), stdout=subprocess.PIPE
        )
        (tmp_path / "fifo").write_bytes(TEXT)
        assert b"cpu_op" in reading.communicate(timeout=PATIENCE_S)[0]
        assert reading.returncode == 0
        # Both are stores like others: listed, and evicted one day.
        assert all((stores / name / "meta.json").is_file() for name in leftovers(stores))
        assert len(leftovers(stores)) == 2

    def test_a_folder_named_like_a_partition_changes_no_column(self, tmp_path: Path) -> None:
        trace = open_trace(DRAWN.write(tmp_path / "a.json"), store=tmp_path / "event=5" / "name=x")
        found = trace.arrow("SELECT event, name FROM events ORDER BY event").to_pydict()
        assert found == {"event": [0, 1, 2], "name": ["aten::mm", "cudaLaunchKernel", "gemm"]}

    def test_refresh_reads_again(self, tmp_path: Path, stores: Path) -> None:
        file = DRAWN.write(tmp_path / "a.json")
        before = (open_trace(file).folder / "meta.json").stat()
        assert (open_trace(file).folder / "meta.json").stat().st_ino == before.st_ino
        again = open_trace(file, refresh=True)
        assert (again.folder / "meta.json").stat().st_mtime_ns > before.st_mtime_ns
        assert is_whole(again)
        assert leftovers(stores) == [again.folder.name]

    def test_the_rest_of_a_store_that_was_being_deleted_is_no_obstacle(
        self, tmp_path: Path, stores: Path
    ) -> None:
        file = DRAWN.write(tmp_path / "a.json")
        folder = open_trace(file).folder
        (folder / "meta.json").unlink()
        assert is_whole(open_trace(file))
        assert leftovers(stores) == [folder.name]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "raw,message",
        [
            (b"", "it is empty"),
            (gzip.compress(b"", mtime=0), "it is empty"),
            (b"\n<!DOCTYPE html><html>", "web page"),
            (b"\x80\x04\x95abc", "pickle"),
            (b"SQLite format 3\0" + bytes(100), "SQLite"),
            (b"hello", "no source knows what it is"),
            (bytes(range(256)), "no source knows what it is"),
            (b'{"segments": [{"address": 1}], "device_traces": [[{"action": "alloc"}]]}', "no traceEvents"),
            (b'{"segments": [{"address": 1}], "device_traces": []}', "segments, device_traces"),
            (b"{}", "no traceEvents"),
            (b"[[1, 2], [3, 4]]", "a list, but not one of events"),
            (b"[1, 2, 3]", "a list, but not one of events"),
            (TEXT.decode().encode("utf-16"), "iconv -f UTF-16"),
            (b" " * 9000, "it is empty"),
            (bytes(257) + b"ustar" + bytes(300), "tar archive"),
            (gzip.compress(TEXT, mtime=0)[:5], "ends too early"),
            (gzip.compress(TEXT, mtime=0)[:100], "ends too early"),
        ],
    )
    def test_what_is_no_trace(self, raw: bytes, message: str, tmp_path: Path, stores: Path) -> None:
        file = written(tmp_path / "a.json", raw)
        with pytest.raises(StepscopeError) as found:
            open_trace(file)
        assert message in found.value.message
        assert str(file) in found.value.message
        assert found.value.hint
        assert found.value.exit_code == 1
        assert not leftovers(stores)

    def test_devices_and_sockets_are_refused(self, tmp_path: Path, stores: Path) -> None:
        with pytest.raises(StepscopeError, match="/dev/zero is not a trace"):
            open_trace("/dev/zero")
        with pytest.raises(StepscopeError, match="/dev/null is not a trace: it is empty"):
            open_trace("/dev/null")
        with socket.socket(socket.AF_UNIX) as listening, chdir(tmp_path):
            listening.bind("socket")
            with pytest.raises(StepscopeError, match="cannot be opened"):
                open_trace("socket")

    def test_a_folder_that_cannot_be_listed(self, tmp_path: Path, stores: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(0o000)
        for command in ("info", "report", "diff"):
            words = [tmp_path / "run"] * (2 if command == "diff" else 1)
            found = stepscope(command, *words, cache=stores, prepare=obey_permissions)
            assert "cannot be listed" in said(found)
        (tmp_path / "run").chmod(0o700)

    def test_a_folder_without_a_trace_and_with_several(self, tmp_path: Path, stores: Path) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        with pytest.raises(StepscopeError, match="there is no trace in the folder") as found:
            open_trace(folder)
        assert ".json.gz" in found.value.hint
        for number in range(6):
            DRAWN.write(folder / f"rank{number}.json")
        with pytest.raises(StepscopeError, match=r"holds 6 traces: rank0.json, .* and 2 more") as found:
            open_trace(folder)
        assert str(folder / "rank0.json") in found.value.hint

    def test_a_store_of_another_format(self, tmp_path: Path, stores: Path) -> None:
        folder = open_trace(DRAWN.write(tmp_path / "a.json")).folder
        meta = json.loads((folder / "meta.json").read_text())
        for name in ("meta.json", "sums.txt"):
            (folder / name).unlink()
        (folder / "meta.json").write_text(json.dumps({**meta, "format": FORMAT + 7}))
        with pytest.raises(StepscopeError) as found:
            open_trace(folder)
        assert f"has format {FORMAT + 7}, this stepscope reads format {FORMAT}" in found.value.message
        assert "ingest the profile again" in found.value.hint

    @pytest.mark.parametrize("text", ["", "[]", "{", "7"])
    def test_a_store_whose_meta_is_broken(self, text: str, tmp_path: Path, stores: Path) -> None:
        folder = open_trace(DRAWN.write(tmp_path / "a.json")).folder
        (folder / "meta.json").unlink()
        (folder / "meta.json").write_text(text)
        with pytest.raises(StepscopeError, match="the store") as found:
            open_trace(folder)
        assert "again" in found.value.hint

    @pytest.mark.parametrize("name", ["ops.parquet", "names.arrow"])
    def test_a_store_that_lacks_a_file(self, name: str, tmp_path: Path, stores: Path) -> None:
        trace = open_trace(DRAWN.write(tmp_path / "a.json"))
        (trace.folder / name).unlink()
        (tmp_path / "a.json").unlink()
        with pytest.raises(StepscopeError, match="is damaged") as found:
            trace.arrow("SELECT * FROM ops")
        assert name in found.value.message
        assert f"rm -r {trace.folder}" in found.value.hint

    @pytest.mark.parametrize("name", ["run[1]", "a*", "what?"])
    def test_a_place_that_is_a_pattern(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(StepscopeError, match="a store cannot be in") as found:
            open_trace(DRAWN.write(tmp_path / "a.json"), store=tmp_path / name)
        assert "--store" in found.value.hint
        assert not (tmp_path / name).exists()

    def test_a_place_that_is_a_file(self, tmp_path: Path) -> None:
        file = DRAWN.write(tmp_path / "a.json")
        with pytest.raises(StepscopeError, match="making the store") as found:
            open_trace(file, store=file)
        assert "--store" in found.value.hint


class TestPermission:
    def test_a_profile_that_may_not_be_read(self, tmp_path: Path) -> None:
        file = DRAWN.write(tmp_path / "a.json")
        file.chmod(0)
        message = said(stepscope("info", file, cache=tmp_path / "cache", prepare=obey_permissions))
        assert f"no permission to read {file}" in message
        assert f"chmod +r {file}" in message
        assert not leftovers(tmp_path / "cache")

    def test_a_profile_in_a_folder_that_may_not_be_entered(self, tmp_path: Path) -> None:
        folder = tmp_path / "closed"
        folder.mkdir()
        file = DRAWN.write(folder / "a.json")
        folder.chmod(0)
        message = said(stepscope("info", file, cache=tmp_path / "cache", prepare=obey_permissions))
        folder.chmod(0o700)
        assert "no permission" in message

    def test_a_missing_profile_in_a_folder_that_may_not_be_listed(self, tmp_path: Path) -> None:
        folder = tmp_path / "dark"
        folder.mkdir(mode=0o311)
        message = said(stepscope("info", folder / "a", cache=tmp_path / "cache", prepare=obey_permissions))
        assert "there is no file" in message
        assert "check the name" in message

    def test_a_cache_that_may_not_be_written(self, tmp_path: Path) -> None:
        file = DRAWN.write(tmp_path / "a.json")
        cache = tmp_path / "cache"
        cache.mkdir(mode=0o555)
        message = said(stepscope("info", file, cache=cache, prepare=obey_permissions))
        assert f"no permission to write {cache}" in message
        assert "STEPSCOPE_CACHE" in message
        assert not leftovers(cache)


class TestFullDisk:
    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        folder = tmp_path / "disk"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
        if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no small disk can be mounted here")
        yield folder
        subprocess.run(["umount", str(folder)], check=True)

    def test_a_full_disk_is_said_and_left_as_it_was(self, small_disk: Path) -> None:
        message = said(stepscope("info", SLOW_ITEM, cache=small_disk / "cache"))
        assert "is full" in message
        assert "no partial store was left" in message
        assert "stepscope cache --clear" in message
        assert not leftovers(small_disk / "cache")

    def test_a_limit_on_the_size_of_files(self, tmp_path: Path) -> None:
        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        message = said(stepscope("info", SLOW_ITEM, cache=tmp_path / "cache", prepare=limited))
        assert "larger than is allowed" in message
        assert "ulimit -f" in message
        assert not leftovers(tmp_path / "cache")


class TestInterruption:
    def begun(self, cache: Path) -> subprocess.Popen[bytes]:
        """A command that has read half of its input and waits for the rest."""
        child = half_read(
            "info",
            cache,
            stderr=subprocess.PIPE,
            # Where the tests run in the background of a shell, children would never hear of an interrupt.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert len(leftovers(cache)) == 1
        return child

    def test_a_killed_run_leaves_no_store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cache = tmp_path / "cache"
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        child = self.begun(cache)
        child.kill()
        child.communicate()
        (left,) = leftovers(cache)
        assert left.startswith(".")
        assert left.endswith(".partial")
        assert not (cache / left / "meta.json").exists()
        *listed, _ = stepscope("cache", cache=cache).stdout.splitlines()
        assert left in listed[0]
        assert listed[1].startswith("0 stores")
        # The next run tidies up.
        assert stepscope("info", SLOW_ITEM, cache=cache).returncode == 0
        assert left not in leftovers(cache)
        assert len(leftovers(cache)) == 1

    def test_an_interrupted_run_leaves_nothing(self, tmp_path: Path) -> None:
        child = self.begun(tmp_path / "cache")
        # On a busy machine an import may still be under way and swallow the first: people press again.
        for _ in range(PATIENCE_S // 20):
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)
                break
        assert child.returncode == 130
        assert child.stderr is not None
        assert child.stderr.read() == b""
        assert not leftovers(tmp_path / "cache")
        assert child.stdin is not None
        child.stdin.close()
        child.stderr.close()

    def test_two_at_once_make_one_store(self, tmp_path: Path) -> None:
        command = [*STEPSCOPE, "ingest", str(SLOW_ITEM)]
        both = [
            subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE) for _ in range(2)
        ]
        outputs = [child.communicate(timeout=PATIENCE_S)[0].decode().splitlines() for child in both]
        assert [child.returncode for child in both] == [0, 0]
        assert outputs[0][0] == outputs[1][0]
        assert leftovers(tmp_path) == [Path(outputs[0][0]).name]
        assert is_whole(open_trace(Path(outputs[0][0])))


def test_a_database_that_lost_its_end_is_called_so(tmp_path: Path) -> None:
    file = tmp_path / "some.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.executescript("CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(60000));")
    with pytest.raises(StepscopeError, match="of no profiler that is known"):
        open_trace(str(file))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(StepscopeError, match=r"cut short: .* KiB are missing"):
        open_trace(str(file))
