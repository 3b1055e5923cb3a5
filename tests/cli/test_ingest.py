"""`stepscope ingest`: prints the store, keeps it, makes it anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import SLOW_ITEM
from tests.drawing import Drawing

import stepscope
from stepscope.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def lines(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    assert main(["ingest", *argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.splitlines()


def test_the_store_is_printed_and_can_be_named(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    folder, summary = lines(capsys, str(SLOW_ITEM))
    assert Path(folder).parent == cache
    trace = stepscope.open(folder)
    assert summary.startswith(f"{trace.meta.events:,} events, ")
    assert "/s)" in summary


def test_a_folder_of_the_users_own(capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path) -> None:
    folder = lines(capsys, str(SLOW_ITEM), "--store", str(tmp_path / "mine"))[0]
    assert Path(folder).parent == tmp_path / "mine"
    assert not cache.exists()
    assert lines(capsys, str(SLOW_ITEM), "--store", str(tmp_path / "mine"))[0] == folder


def test_refresh(capsys: pytest.CaptureFixture[str]) -> None:
    meta = Path(lines(capsys, str(SLOW_ITEM))[0]) / "meta.json"
    made = meta.stat().st_mtime_ns
    lines(capsys, str(SLOW_ITEM))
    assert meta.stat().st_mtime_ns == made
    lines(capsys, str(SLOW_ITEM), "--refresh")
    assert meta.stat().st_mtime_ns > made


def test_damage_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = Drawing().op("a", 0, 1).op("b", 2, 1).json()
    (tmp_path / "a.json").write_text(text[: text.index('"b"')])
    assert any(line.startswith("damage: 1 x ") for line in lines(capsys, str(tmp_path / "a.json")))
