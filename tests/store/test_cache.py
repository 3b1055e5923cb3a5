"""Stores that are kept: found by content, the least used go first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.commands import DATA
from tests.drawing import Drawing

import stepscope
from stepscope import opening
from stepscope.errors import StepscopeError
from stepscope.store import cache

DRAWN = Drawing().op("aten::mm", 0, 10)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("STEPSCOPE_CACHE_LIMIT", raising=False)
    return tmp_path / "kept"


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def used(folder: Path, hours_ago: float) -> None:
    then = time.time() - 3600 * hours_ago
    os.utime(folder, (then, then))


def test_where_stores_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "a"))
    assert cache.root() == tmp_path / "a"
    monkeypatch.delenv("STEPSCOPE_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.root() == tmp_path / "xdg" / "stepscope"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.root() == Path.home() / ".cache" / "stepscope"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.root() == Path.home() / "Library" / "Caches" / "stepscope"


def test_the_platform_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STEPSCOPE_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    trace = stepscope.open(DRAWN.write(tmp_path / "a.json"))
    assert trace.folder.parent == tmp_path / "xdg" / "stepscope"


def key(path: Path) -> Path | None:
    return cache.folder_for(str(path), path.parent, cache.versions([str(path)]))


def write_at(path: Path, raw: bytes | bytearray, at: int = 1) -> Path:
    """A file that says that it was written then."""
    path.write_bytes(raw)
    os.utime(path, (at, at))
    return path


class TestKey:
    def test_of_a_small_file_it_follows_every_byte(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        middle = b"x" * 150_000 + b"y" + b"x" * 149_999
        last = b"x" * 299_999 + b"y"
        found = [b"x" * 300_000, b"x" * 300_001, b"y" + b"x" * 299_999, middle, last]
        keys = [key(write_at(file, raw)) for raw in found]
        assert len(set(keys)) == len(keys)
        assert key(write_at(file, found[0], at=2)) == keys[0]

    def test_of_a_small_file_it_is_the_same_wherever_the_file_is(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        found = [key(write_at(place, b"x")) for place in (tmp_path / "a.json", tmp_path / "b" / "a.json")]
        assert found[0] == found[1].parent.parent / found[1].name if found[1] else False

    def test_of_a_large_file_it_follows_pieces_and_times(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "WHOLE_BYTES", 100_000)
        # As large as to have bytes between the pieces.
        file, raw = tmp_path / "a.json", bytearray(6 << 20)
        keys = [key(write_at(file, raw)), key(write_at(file, raw, at=2))]
        for place in (0, 40_000, 98_304, len(raw) // 2, len(raw) - 1):
            raw[place] = 1
            keys.append(key(write_at(file, raw)))
        assert len(set(keys)) == len(keys)

    def test_of_a_large_file_it_follows_the_time_that_nobody_can_set(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "WHOLE_BYTES", 100_000)
        file = write_at(tmp_path / "a.json", bytes(6 << 20))
        before = key(file)
        assert key(file) == before
        time.sleep(0.05)  # as clocks of file systems tick
        with file.open("r+b") as handle:
            handle.seek(70_000)  # between the first piece and the second
            handle.write(b"1")
        os.utime(file, (1, 1))
        assert key(file) != before

    @pytest.mark.parametrize("whole", [100_000, 10])
    def test_of_a_folder_it_follows_names_and_files(
        self, whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "WHOLE_BYTES", whole)
        folder = tmp_path / "run"
        folder.mkdir()
        for name in ("a", "b"):
            write_at(folder / name, b"x" * 100)
        keys = [key(folder)]
        write_at(folder / "b", b"x" * 99 + b"y")
        keys.append(key(folder))
        (folder / "b").rename(folder / "c")
        keys.append(key(folder))
        assert len(set(keys)) == len(keys)
        assert key(folder) == keys[-1]

    @pytest.mark.parametrize("name", ["ünï cödé [1]*?.json", ".json", "a" * 200 + ".json.gz", "'; DROP.json"])
    def test_odd_names_make_plain_folders(self, name: str, tmp_path: Path, kept: Path) -> None:
        trace = stepscope.open(DRAWN.write(tmp_path / name))
        assert trace.arrow("SELECT name FROM ops")["name"].to_pylist() == ["aten::mm"]
        assert trace.folder.parent == kept


def test_the_second_time_the_profile_is_not_read(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DRAWN.write(tmp_path / "a.json")
    first = stepscope.open(file)

    def read(*_: object) -> None:
        raise AssertionError("it is read again")

    monkeypatch.setattr("stepscope.opening.build", read)
    second = stepscope.open(file)
    assert second.folder == first.folder
    assert second.meta == first.meta


def test_a_profile_that_changed_in_the_middle_is_read_again(tmp_path: Path, kept: Path) -> None:
    """Its size, its time, its first and its last bytes are what they were."""
    file = Drawing().op("aten::mm", 0, 10).meta(a="x" * 200_000, b="x" * 200_000).write(tmp_path / "a.json")
    status, raw = file.stat(), file.read_bytes()
    first = stepscope.open(file)
    for was, now in ((b"aten::mm", b"aten::bb"), (b"xxxxx", b"xxyxx")):
        at = raw.index(was)
        write_at(file, raw[:at] + now + raw[at + len(now) :])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert file.stat().st_size == len(raw)
        assert stepscope.open(file).folder != first.folder
    changed = stepscope.open(write_at(file, raw.replace(b"aten::mm", b"aten::bb")))
    assert changed.arrow("SELECT name FROM ops")["name"].to_pylist() == ["aten::bb"]


def test_a_profile_that_is_written_to_while_it_is_read_is_read_again(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a copy of what it was before would be answered with what it became."""
    file = DRAWN.write(tmp_path / "a.json")
    before = file.read_bytes()

    def read_late(*args: Any) -> None:
        file.write_bytes(before.replace(b"aten::mm", b"aten::addmm"))
        read(*args)

    read = opening._ingest
    monkeypatch.setattr(opening, "_ingest", read_late)
    first = stepscope.open(file)
    monkeypatch.undo()
    monkeypatch.setenv("STEPSCOPE_CACHE", str(kept))
    assert first.arrow("SELECT name FROM ops")["name"].to_pylist() == ["aten::addmm"]
    file.write_bytes(before)
    assert stepscope.open(file).arrow("SELECT name FROM ops")["name"].to_pylist() == ["aten::mm"]


class TestLimit:
    @pytest.mark.parametrize(
        "text,size",
        [("20GB", 20 * 10**9), ("1.5 k", 1500), ("100", 100), ("2mb", 2 * 10**6), ("1TB", 10**12), ("0", 0)],
    )
    def test_sizes(self, text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", text)
        assert cache.limit() == size

    @pytest.mark.parametrize("text", ["", "many", "-1", "1XB", "GB"])
    def test_what_is_no_size(
        self, text: str, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", text)
        with pytest.raises(StepscopeError, match="is not a size") as found:
            stepscope.open(DRAWN.write(tmp_path / "a.json"))
        assert "STEPSCOPE_CACHE_LIMIT=20GB" in found.value.hint
        # Said before the reading, not after it.
        assert not kept.exists()

    def test_the_least_used_go_first(
        self, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, older, new = (
            stepscope.open(DRAWN.meta(number=number).write(tmp_path / f"{number}.json")).folder
            for number in range(3)
        )
        used(old, 5)
        used(older, 6)
        used(new, 1)
        (kept / "notes.txt").write_text("mine")
        size = cache.entries(kept)[0].bytes
        monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", str(size * 3 + 500))
        stepscope.open(old)  # by its folder, and so it is used
        last = stepscope.open(DRAWN.meta(number=4).write(tmp_path / "4.json")).folder
        assert names(kept) == {old.name, new.name, last.name, "notes.txt"}

    def test_the_store_in_use_stays_however_large(
        self, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stepscope.open(DRAWN.write(tmp_path / "a.json"))
        monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", "1")
        trace = stepscope.open(DRAWN.meta(other=1).write(tmp_path / "b.json"))
        assert trace.arrow("SELECT 1 AS one")["one"].to_pylist() == [1]
        assert names(kept) == {trace.folder.name}

    def test_a_folder_of_the_users_own_has_no_limit(
        self, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", "1")
        for name in ("a", "b"):
            stepscope.open(DRAWN.meta(name=name).write(tmp_path / f"{name}.json"), store=tmp_path / "mine")
        assert len(names(tmp_path / "mine")) == 2


def test_only_old_leftovers_go(tmp_path: Path, kept: Path) -> None:
    for name, hours in ((".a.x.partial", 30), (".b.x.partial", 20), (".mine", 99)):
        (kept / name).mkdir(parents=True)
        used(kept / name, hours)
    stepscope.open(DRAWN.write(tmp_path / "a.json"))
    assert {".b.x.partial", ".mine"} <= names(kept)
    assert ".a.x.partial" not in names(kept)


def test_listing_and_clearing(tmp_path: Path, kept: Path) -> None:
    assert cache.entries(kept) == []
    a, b = (stepscope.open(DATA / f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz") for rank in range(2))
    used(a.folder, 1)
    (b.folder / "sums.txt").unlink()  # as in a store of an earlier format
    (b.folder / "meta.json").unlink()
    (b.folder / "meta.json").write_text('{"format": 0}')
    (kept / "notes.txt").write_text("mine")
    (kept / ".x.partial").mkdir()
    used(kept / ".x.partial", 30)
    found = cache.entries(kept)
    assert [entry.folder for entry in found] == [b.folder, a.folder]
    assert [entry.source for entry in found] == ["(another format)", a.path]
    assert found[1].bytes == sum(file.stat().st_size for file in a.folder.iterdir())
    assert cache.clear(kept) == found
    assert names(kept) == {"notes.txt"}
