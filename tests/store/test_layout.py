"""How a store comes into being and goes: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import StepscopeError
from stepscope.schema import FORMAT
from stepscope.store.layout import (
    build,
    check_place,
    explained,
    is_store,
    locked,
    read_meta,
    remove,
    write_meta,
)
from stepscope.store.meta import Damage, SourceMeta, TraceMeta

META = TraceMeta(
    (SourceMeta(source="a", damage=(Damage("lost", 2, 3, (4, 5)),), metadata={"m": [1]}),), {"ops": 1}
)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def finish(folder: Path) -> None:
    (folder / "rows.parquet").write_text("rows")
    write_meta(folder, META)


def test_a_store_is_there_when_it_is_whole(tmp_path: Path) -> None:
    seen = []

    def make(folder: Path) -> None:
        assert not is_store(tmp_path / "a")
        seen.append(folder.name)
        finish(folder)

    build(tmp_path / "a", make)
    assert is_store(tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert seen[0].startswith(".a.")
    assert seen[0].endswith(".partial")
    assert read_meta(tmp_path / "a") == META


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_what_fails_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        finish(folder)
        raise error

    with pytest.raises(type(error)):
        build(tmp_path / "deep" / "a", make)
    assert names(tmp_path / "deep") == []


def test_the_second_of_two_gives_way(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        build(tmp_path / "a", finish)
        (folder / "late").touch()
        finish(folder)

    build(tmp_path / "a", make)
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["meta.json", "rows.parquet", "sums.txt"]


def test_what_lies_in_the_way_and_is_no_store_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rest.parquet").touch()
    build(tmp_path / "a", finish)
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["meta.json", "rows.parquet", "sums.txt"]


def test_a_removed_store_is_gone_at_once(tmp_path: Path) -> None:
    build(tmp_path / "a", finish)
    remove(tmp_path / "a")
    remove(tmp_path / "a")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "number,message,hint",
    [
        (errno.ENOSPC, "is full", "stepscope cache --clear"),
        (errno.EDQUOT, "is full", "--store"),
        (errno.EFBIG, "larger than is allowed", "ulimit -f"),
        (errno.EACCES, "no permission to write", "STEPSCOPE_CACHE"),
        (errno.EROFS, "no permission to write", "--store"),
        (errno.EIO, "failed: Input/output error", "--store"),
    ],
)
def test_what_a_disk_says(number: int, message: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(StepscopeError) as found, explained("making", tmp_path / "none" / "a"):
        raise OSError(number, os.strerror(number))
    assert found.value.message.startswith("making")
    assert message in found.value.message
    assert hint in found.value.hint


def test_no_store_and_no_meta(tmp_path: Path) -> None:
    with pytest.raises(StepscopeError, match="is not a stepscope store") as found:
        read_meta(tmp_path)
    assert "stepscope ingest" in found.value.hint
    (tmp_path / "meta.json").write_text(json.dumps({"format": 0}))
    with pytest.raises(StepscopeError, match=f"has format 0, this stepscope reads format {FORMAT}"):
        read_meta(tmp_path)
    broken: list[dict[str, Any]] = [{}, {"sources": [{}], "rows": {}}]
    for rest in (*broken, {"sources": [{"damage": [], "other": 1}], "rows": {}}):
        (tmp_path / "meta.json").write_text(json.dumps({"format": FORMAT, **rest}))
        with pytest.raises(StepscopeError, match="cannot be read"):
            read_meta(tmp_path)
    assert not is_store(tmp_path / ("n" * 300))


@pytest.mark.parametrize("sign", "*?[")
def test_signs_of_patterns_are_refused_anywhere_in_the_path(sign: str, tmp_path: Path) -> None:
    check_place(tmp_path)
    for folder in (tmp_path / f"a{sign}", tmp_path / sign / "b"):
        with pytest.raises(StepscopeError, match="a store cannot be in"):
            check_place(folder)


def test_one_at_a_time_is_let_in(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with locked(tmp_path):
            order.append("second")

    with locked(tmp_path):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from stepscope.store.layout import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with locked(tmp_path):
        pass
