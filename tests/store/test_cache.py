"""Stores that are kept: found by content, the least used go first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.commands import DATA
from tests.drawing import Drawing

import stepscope
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


class TestKey:
    def test_it_follows_content_size_and_time(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        keys = []
        for raw, at in [(b"x" * 300_000, 1), (b"x" * 300_001, 1), (b"x" * 300_000, 2), (b"y" * 300_000, 1)]:
            file.write_bytes(raw)
            os.utime(file, (at, at))
            keys.append(cache.folder_for(str(file), tmp_path))
        file.write_bytes(b"x" * 299_999 + b"z")
        os.utime(file, (1, 1))
        keys.append(cache.folder_for(str(file), tmp_path))
        assert len(set(keys)) == len(keys)
        file.write_bytes(b"x" * 300_000)
        os.utime(file, (1, 1))
        assert cache.folder_for(str(file), tmp_path) == keys[0]

    def test_it_is_the_same_wherever_the_file_is(self, tmp_path: Path) -> None:
        (tmp_path / "b").mkdir()
        for place in (tmp_path / "a.json", tmp_path / "b" / "a.json"):
            place.write_bytes(b"x")
            os.utime(place, (1, 1))
        assert cache.folder_for(str(tmp_path / "a.json"), tmp_path) == cache.folder_for(
            str(tmp_path / "b" / "a.json"), tmp_path
        )

    @pytest.mark.parametrize("name", ["ünï cödé [1]*?.json", ".json", "a" * 200 + ".json.gz", "'; DROP.json"])
    def test_odd_names_make_plain_folders(self, name: str, tmp_path: Path, kept: Path) -> None:
        trace = stepscope.open(DRAWN.write(tmp_path / name))
        assert trace.arrow("SELECT name FROM ops")["name"].to_pylist() == ["aten::mm"]
        assert trace.folder.parent == kept


def test_the_second_time_the_profile_is_not_read(tmp_path: Path, kept: Path) -> None:
    file = tmp_path / "a.json"
    # As large as to have a middle that the key does not look at.
    DRAWN.meta(filler="x" * 400_000).write(file)
    status = file.stat()
    first = stepscope.open(file)
    # The middle is destroyed, and all that the key looks at stays: who read it would fail.
    with file.open("r+b") as handle:
        handle.seek(200_000)
        handle.write(b"\0" * 100)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = stepscope.open(file)
    assert second.folder == first.folder
    assert second.meta == first.meta
    assert not second.meta.damage


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
    (b.folder / "meta.json").write_text('{"format": 0}')
    (kept / "notes.txt").write_text("mine")
    (kept / ".x.partial").mkdir()
    found = cache.entries(kept)
    assert [entry.folder for entry in found] == [b.folder, a.folder]
    assert [entry.source for entry in found] == ["(another format)", a.path]
    assert found[1].bytes == sum(file.stat().st_size for file in a.folder.iterdir())
    assert cache.clear(kept) == found
    assert names(kept) == {"notes.txt"}
