"""`stepscope query`: one SELECT, four formats, and the list of views."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.commands import SLOW_ITEM, STEPSCOPE, environment, stepscope
from tests.drawing import Drawing

from stepscope.cli.main import main
from stepscope.store.views import VIEWS

KERNEL = Drawing().op("aten::mm\n\x1b[31m", 0, 10).kernel("gemm", 5, 3, args={"grid": [1, 2, 3]})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(KERNEL.write(tmp_path / "a.json"))


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["query", *argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_the_schema_lists_every_view_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "--schema")
    for view in VIEWS:
        assert f"{view.name}: {view.description}\n" in text
        for name, _, description in view.columns:
            assert any(
                line.startswith(f"  {name} ") and line.endswith(description) for line in text.splitlines()
            )


def test_a_table(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, trace, "SELECT name, dur_ns, NULL AS none FROM events ORDER BY event")
    assert text.splitlines() == [
        "name                dur_ns  none",
        "──────────────────  ──────  ────",
        "aten::mm\\n\\x1b[31m   10000  NULL",
        "gemm                  3000  NULL",
    ]


def test_a_long_table_says_that_there_is_more(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, trace, "SELECT i FROM range(1234) t(i)")
    assert text.count("\n") == 1003
    assert "234 more rows" in text


def test_csv(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = (
        "SELECT name, sum(dur_ns) AS ns, [1, NULL] AS list, {'a': 1} AS made, NULL AS none"
        " FROM kernels GROUP BY 1"
    )
    rows = list(csv.reader(io.StringIO(answer(capsys, trace, sql, "--format", "csv"))))
    assert rows == [["name", "ns", "list", "made", "none"], ["gemm", "3000", "[1, null]", '{"a": 1}', ""]]


def test_json(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql = (
        "SELECT sum(dur_ns) AS ns, avg(dur_ns) AS mean, 'nan'::DOUBLE AS odd, 1.25::DECIMAL(5, 2) AS exact,"
        " [1, 2] AS list, DATE '2024-02-03' AS day, NULL AS none, true AS yes FROM kernels"
    )
    (row,) = json.loads(answer(capsys, trace, sql, "--format", "json"), parse_constant=pytest.fail)
    expected = {"ns": 3000, "mean": 3000.0, "odd": None, "exact": 1.25, "list": [1, 2], "day": "2024-02-03"}
    assert row == {**expected, "none": None, "yes": True}


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_two_columns_of_one_name(form: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, trace, "SELECT 1 AS a, 2 AS a, 3 AS a_1", "--format", form)
    for part in ("a_1", "1", "2", "3"):
        assert part in text


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_no_row(form: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, trace, "SELECT name FROM events WHERE false", "--format", form)
    assert text == {"table": "name\n────\n", "csv": '"name"\n', "json": "[]\n"}[form]


def test_parquet(trace: str, tmp_path: Path, cache: Path) -> None:
    command = [*STEPSCOPE, "query", trace, "SELECT name, 1 AS a, 2 AS a FROM events;", "--format", "parquet"]
    done = subprocess.run(command, env=environment(cache), capture_output=True, check=True)
    table = pq.read_table(io.BytesIO(done.stdout))
    assert table.column_names == ["name", "a", "a_1"]
    assert table.num_rows == 2


@pytest.mark.parametrize(
    "argv,code,message,hint",
    [
        (["SELECT nam FROM ops"], 1, "nam", "--schema"),
        (["SELEC"], 1, "syntax error", "--schema"),
        (["DROP VIEW ops"], 1, "DROP is not allowed", "SELECT"),
        (["SELECT 1; SELECT 2"], 1, "2 statements", "SELECT"),
        (["SELECT * FROM read_text('/etc/passwd')"], 1, "read_text is not allowed", "--schema"),
        ([], 2, "no query given", "stepscope query TRACE"),
    ],
)
def test_what_is_refused(
    argv: list[str], code: int, message: str, hint: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", trace, *argv]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert hint in printed.err.partition("hint:")[2]


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "SELECT count(*) AS n FROM kernels", "--demo", "--format", "json")
    assert json.loads(text)[0]["n"] > 0


def test_a_store_and_the_tree(capsys: pytest.CaptureFixture[str], tmp_path: Path, cache: Path) -> None:
    sql = "SELECT count(*) AS n FROM host_tree"
    first = answer(capsys, str(SLOW_ITEM), sql, "--store", str(tmp_path / "mine"), "--format", "json")
    (folder,) = (tmp_path / "mine").iterdir()
    assert answer(capsys, str(folder), sql, "--format", "json") == first
    assert not cache.exists()


def test_an_analysis_is_a_table(tmp_path: Path) -> None:
    asked = "SELECT name, calls FROM analyses.kernels ORDER BY calls DESC, name LIMIT 1"
    done = stepscope("query", SLOW_ITEM, asked, "--format", "json", cache=tmp_path)
    plain = "SELECT name, count(*) AS calls FROM kernels GROUP BY name ORDER BY calls DESC, name LIMIT 1"
    assert json.loads(done.stdout) == json.loads(
        stepscope("query", SLOW_ITEM, plain, "--format", "json", cache=tmp_path).stdout
    )
    assert "analyses.NAME" in stepscope("query", "--schema", cache=tmp_path).stdout
    wrong = stepscope("query", SLOW_ITEM, "FROM analyses.kernel", cache=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean kernels?" in wrong.stderr
