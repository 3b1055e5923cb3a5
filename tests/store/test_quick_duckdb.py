"""duckdb without what few commands use: the rest comes when it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from stepscope.store.quick_duckdb import arrow_of

QUICK = "import sys; from stepscope.store.quick_duckdb import quick_duckdb; quick_duckdb(); import duckdb"
LEFT_OUT = ("duckdb._relation", "duckdb._expression", "duckdb._version")


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_what_takes_long_is_not_imported() -> None:
    asked = "print(duckdb.connect().execute('SELECT 1 AS one').fetchall())"
    left = f"print([name for name in {LEFT_OUT} if name in sys.modules])"
    assert printed(f"{QUICK}; {asked}; {left}").split("\n") == ["[(1,)]", "[]", ""]


def test_relations_come_when_they_are_asked_for() -> None:
    asked = "print(duckdb.connect().sql('SELECT $n AS one', params={'n': 7}).to_arrow_table().to_pylist())"
    table = "import pyarrow as pa; given = duckdb.connect().from_arrow(pa.table({'a': [3]}))"
    found = printed(f"{QUICK}; {asked}; {table}; print(given.fetchall(), given.columns)")
    assert found.split("\n") == ["[{'one': 7}]", "[(3,)] ['a']", ""]


def test_a_duckdb_that_is_made_of_other_parts_is_imported_as_usual() -> None:
    other = "import stepscope.store.quick_duckdb as quick; quick._StandIn.__getattr__ = lambda *_: 1 / 0"
    asked = "print(duckdb.connect().sql('SELECT 1 AS one').fetchall(), duckdb.__version__ is not None)"
    assert printed(f"{other}; {QUICK}; {asked}") == "[(1,)] True\n"


@pytest.mark.parametrize("params", [{}, {"least": 3}])
def test_answers_are_those_of_relations(params: dict[str, int]) -> None:
    sql = f"SELECT range AS n, 'a' || range AS t FROM range(9) WHERE range >= {'$least' if params else '0'}"
    connection = duckdb.connect()
    only_relations = SimpleNamespace(sql=connection.sql)
    whole, expected = (arrow_of(one, sql, params, None) for one in (connection, only_relations))
    assert whole.equals(expected)
    assert whole.num_rows == 9 - params.get("least", 0)
    assert arrow_of(connection, sql, params, 4).read_all().equals(expected)
    with pytest.raises(duckdb.Error, match="nothing"):
        arrow_of(connection, "SELECT nothing", {}, 4)


@pytest.mark.slow
def test_a_small_report_does_without(tmp_path: Path) -> None:
    trace = Path(__file__).parents[1] / "data" / "h200_tutorial_baseline.pt.trace.json.gz"
    told = f"atexit.register(lambda: print([name in sys.modules for name in {LEFT_OUT}], flush=True))"
    code = f"import atexit, sys; {told}; from stepscope.cli.main import main; main()"
    command = [sys.executable, "-c", code, "report", str(trace), "--store", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[False, False, False]"
