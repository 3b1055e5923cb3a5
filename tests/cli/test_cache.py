"""`stepscope cache`: lists and clears."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", "5MB")
    # What other runs left for temporary files is not for this test.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "cache"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["cache", *argv]) == 0
    return capsys.readouterr().out


def made(tmp_path: Path, name: str) -> Path:
    return stepscope.open(Drawing().op(name, 0, 1).write(tmp_path / f"{name}.json")).folder


def test_nothing_yet(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert said(capsys) == f"0 stores, 0 B of 4.77 MiB, in {cache}\n"
    assert said(capsys, "--clear") == f"removed 0 stores, 0 B, from {cache}\n"


def test_a_list_and_a_clearing(capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path) -> None:
    folders = [made(tmp_path, name) for name in ("a", "b")]
    (cache / "notes.txt").write_text("mine")
    *listed, total = said(capsys).splitlines()
    assert len(listed) == 2
    for folder in folders:
        assert any(folder.name in line and f"({tmp_path}/" in line for line in listed)
    assert total.startswith("2 stores, ")
    assert said(capsys, "--clear").startswith("removed 2 stores, ")
    assert [entry.name for entry in cache.iterdir()] == ["notes.txt"]


def test_another_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path) -> None:
    kept = made(tmp_path, "a")
    stepscope.open(tmp_path / "a.json", store=tmp_path / "mine")
    assert said(capsys, "--store", str(tmp_path / "mine")).splitlines()[-1].endswith(str(tmp_path / "mine"))
    said(capsys, "--clear", "--store", str(tmp_path / "mine"))
    assert not list((tmp_path / "mine").iterdir())
    assert kept.is_dir()


def test_a_limit_that_is_no_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE_LIMIT", "much")
    assert main(["cache"]) == 1
    printed = capsys.readouterr()
    assert "STEPSCOPE_CACHE_LIMIT=much is not a size" in printed.err
    assert "hint: export STEPSCOPE_CACHE_LIMIT=20GB" in printed.err
