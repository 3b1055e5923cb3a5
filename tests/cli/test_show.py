"""`stepscope show`: every analysis, in every format, of a real trace."""

from __future__ import annotations

import csv
import importlib
import io
import json
from pathlib import Path

import pytest
from tests.commands import SLOW_ITEM

import stepscope
from stepscope import registry
from stepscope.cli.main import main
from stepscope.store.trace import Trace

pytestmark = pytest.mark.usefixtures("answers_kept")

show = importlib.import_module("stepscope.cli.commands.show")
ANALYSES = [name for name, _ in registry.names("analyses")]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return stepscope.open(SLOW_ITEM, store=tmp_path_factory.mktemp("show"))


@pytest.fixture
def store(trace: Trace) -> str:
    return str(trace.folder)


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["show", *argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


@pytest.mark.parametrize("name", ANALYSES)
def test_formats_agree(
    name: str, trace: Trace, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = registry.load("analyses", name)(trace)
    found = json.loads(said(capsys, name, store, "--format", "json"))
    assert found["analysis"] == name
    assert [column["name"] for column in found["columns"]] == [column.name for column in table.columns]
    assert found["rows"] == table.records()
    # The other formats show the table that is there already.
    monkeypatch.setattr(show, "open_with_progress", lambda *_, **__: trace)
    rows = list(csv.reader(io.StringIO(said(capsys, name, store, "--format", "csv"))))
    assert rows[0] == [column.name for column in table.columns]
    assert len(rows) == len(table) + 1
    assert said(capsys, name, store, "--format", "markdown").startswith("|")
    assert said(capsys, name, store)


def test_a_limit(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(said(capsys, "ops", store, "--format", "json", "--limit", "2"))["rows"]) == 2
    assert main(["show", "ops", store, "--limit", "-1"]) == 2


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys)
    for name, first_line in registry.names("analyses"):
        assert f"{name} " in text
        assert first_line in text


@pytest.mark.parametrize(
    "argv,code,message,hint",
    [
        (["kernals", "a.json"], 2, "unknown analysis 'kernals'", "did you mean kernels?"),
        (["kernels"], 2, "needs a trace", "stepscope show kernels TRACE"),
        (["kernels", "none.json"], 1, "there is no file none.json", ""),
    ],
)
def test_what_is_refused(
    argv: list[str], code: int, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *argv]) == code
    printed = capsys.readouterr()
    assert message in printed.err
    assert hint in printed.err


def test_the_demo(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    assert "kernel" in said(capsys, "categories", "--demo")
