"""The fence: a query reads the store and nothing else, and changes nothing."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.errors import StepscopeError
from stepscope.store.connection import check_read_only
from stepscope.store.trace import Trace

DRAWN = Drawing().op("aten::mm", 0, 10).launch("cudaLaunchKernel", 2, 1, corr=7).kernel("gemm", 5, 3, corr=7)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("fence")
    (folder / "secret.txt").write_text("the secret")
    opened = stepscope.open(DRAWN.write(folder / "a.json"), store=folder / "stores")
    other = stepscope.open(DRAWN.meta(other=1).write(folder / "b.json"), store=folder / "stores")
    other.folder.rename(folder / "stores" / "other")
    return opened


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def refused(trace: Trace, sql: str) -> StepscopeError:
    root = trace.folder.parent.parent
    before = digests(root)
    with pytest.raises(StepscopeError) as found:
        trace.arrow(sql.replace("{root}", str(root)).replace("{store}", str(trace.folder)))
    assert digests(root) == before
    assert found.value.exit_code == 1
    assert found.value.hint
    assert "the secret" not in found.value.message
    return found.value


READS = [
    "SELECT * FROM read_text('{root}/secret.txt')",
    "SELECT * FROM read_text('{store}/../../secret.txt')",
    "SELECT * FROM read_text('{store}/./../../secret.txt')",
    "SELECT * FROM read_blob('{root}/secret.txt')",
    "SELECT * FROM read_csv('{root}/secret.txt')",
    "SELECT * FROM read_csv('secret.txt')",
    "SELECT * FROM read_json('{root}/a.json')",
    "SELECT * FROM sniff_csv('{root}/secret.txt')",
    "SELECT * FROM glob('{root}/*')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM read_text('{root}/*.txt')",
    "SELECT * FROM read_parquet('{root}/stores/other/ops.parquet')",
    "SELECT * FROM read_parquet('{root}/stores/*/ops.parquet')",
    "SELECT * FROM parquet_metadata('{root}/stores/other/ops.parquet')",
    "FROM '{root}/stores/other/ops.parquet'",
    "FROM '{root}/secret.txt'",
    "FROM '/etc/passwd'",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_csv('https://example.com/a.csv')",
    "FROM 'https://example.com/a.parquet'",
    "SELECT * FROM read_parquet('s3://bucket/a.parquet')",
    "SELECT getenv('HOME')",
    "SELECT name, (SELECT content FROM read_text('{root}/secret.txt')) FROM ops",
    "WITH a AS (FROM read_text('{root}/secret.txt')) FROM a",
    "SELECT * FROM query('FROM read_text(''{root}/secret.txt'')')",
    "SELECT * FROM query_table('{root}/secret.txt')",
    "EXPLAIN ANALYZE SELECT * FROM read_text('{root}/secret.txt')",
]

CHANGES = [
    "COPY ops TO '{root}/out.csv'",
    "COPY ops TO '{store}/ops.parquet' (FORMAT parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{store}/ops.parquet' (FORMAT parquet)",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{store}/new.csv'",
    "/* */ EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{store}/new.csv'",
    "explain analyze /* */ COPY (SELECT 1 AS a) TO '{store}/new.csv'",
    "EXPLAIN (FORMAT json) COPY (SELECT 1 AS a) TO '{store}/new.csv'",
    "EXPLAIN (ANALYZE, FORMAT json /* ) SELECT 1 -- */) COPY (SELECT 1) TO '{store}/new.csv'",
    "ATTACH '{root}/a.db'",
    "ATTACH '{store}/a.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET memory_limit = '10GB'",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "SET VARIABLE a = 1",
    "CREATE TABLE a (b INT)",
    "CREATE TEMP TABLE a AS SELECT 1",
    "CREATE MACRO a() AS 1",
    "CREATE SECRET (TYPE s3)",
    "DROP VIEW ops",
    "INSERT INTO ops VALUES (1)",
    "WITH a AS (INSERT INTO ops VALUES (1) RETURNING *) FROM a",
    "UPDATE stored.ops SET name = 1",
    "DELETE FROM stored.ops",
    "ALTER VIEW ops RENAME TO b",
    "EXPORT DATABASE '{root}/out'",
    "IMPORT DATABASE '{root}/out'",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "USE stored",
    "PREPARE a AS SELECT 1",
    "EXECUTE a",
    "SELECT * FROM query('DROP VIEW ops')",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM \"ENABLE_LOGGING\"(storage = 'file', storage_path = '{store}/log')",
]


@pytest.mark.parametrize("sql", READS)
def test_no_other_file_is_read(sql: str, trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trace.folder.parent.parent)
    refused(trace, sql)


@pytest.mark.parametrize("sql", CHANGES)
def test_nothing_is_changed(sql: str, trace: Trace) -> None:
    refused(trace, sql)


@pytest.mark.parametrize(
    "sql", ["SELECT 1; SELECT 2", "SELECT 1; DROP VIEW ops", "", "  ", "-- nothing", ";"]
)
def test_one_statement_is_asked_for(sql: str, trace: Trace) -> None:
    assert "statement" in refused(trace, sql).message


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT 1;",
        "  select 1 -- and a comment",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "FROM ops",
        "VALUES (1)",
        "DESCRIBE ops",
        "SUMMARIZE ops",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "explain analyze select 1",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "SELECT 'COPY ops TO ''a''; DROP VIEW ops'",
    ],
)
def test_reading_is_allowed(sql: str, trace: Trace) -> None:
    check_read_only(sql)
    assert trace.arrow(sql).num_rows


def test_python_variables_are_no_tables(trace: Trace) -> None:
    import pyarrow as pa

    mine = pa.table({"a": [1]})
    assert "does not exist" in refused(trace, "SELECT * FROM mine").message
    assert mine.num_rows == 1


def test_no_extension_is_fetched(trace: Trace) -> None:
    refused(trace, "SELECT * FROM st_read('a.shp')")
    refused(trace, "SELECT * FROM sqlite_scan('a.db', 't')")


def test_parameters(trace: Trace) -> None:
    sql = "SELECT event FROM events WHERE name = $name AND dur_ns > $least"
    assert trace.arrow(sql, name="gemm", least=10)["event"].to_pylist() == [2]
    assert trace.arrow(sql, name="'; DROP VIEW ops; --", least=0).num_rows == 0
    assert [b.num_rows for b in trace.batches(sql, name="gemm", least=10)] == [1]
    with pytest.raises(StepscopeError, match="parameters"):
        trace.arrow(sql, name="gemm")


@pytest.mark.parametrize(
    "sql,message",
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nmae FROM ops", "nmae.*name"),
        ("SELECT * FROM opps", "opps"),
        ("SELECT error('this is wrong')", "this is wrong"),
        ("SELECT 'a'::INT", "convert"),
    ],
)
def test_what_is_wrong_with_a_query_is_said_in_a_line(sql: str, message: str, trace: Trace) -> None:
    with pytest.raises(StepscopeError, match=message) as found:
        trace.arrow(sql)
    assert "\n" not in found.value.message
    assert "--schema" in found.value.hint


def test_an_error_that_comes_late(trace: Trace) -> None:
    sql = "SELECT CASE WHEN i < 900000 THEN i ELSE error('too far') END AS i FROM range(1000000) t(i)"

    def read() -> int:
        return sum(batch.num_rows for batch in trace.batches(sql))

    with pytest.raises(StepscopeError, match="too far"):
        read()


@pytest.mark.slow
def test_what_does_not_fit_in_memory_goes_to_a_temporary_place(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fresh = Trace(trace.folder)
    found = fresh.arrow("SELECT current_setting('temp_directory') AS place")["place"][0].as_py()
    assert Path(found).parent == tmp_path
    sql = "SELECT count(*) AS n FROM (SELECT DISTINCT hash(i)::VARCHAR || 'padding' FROM range(8000000) t(i))"
    assert fresh.arrow(sql)["n"].to_pylist() == [8_000_000]
    assert not list((tmp_path / "here").iterdir())


def test_the_fence_stands_on_every_connection(trace: Trace) -> None:
    settings = (
        "SELECT current_setting('enable_external_access') AS access,"
        " current_setting('lock_configuration') AS locked,"
        " current_setting('autoload_known_extensions') AS autoload"
    )
    for one in (trace, trace.reading({"ops": ("name",)})):
        found: list[dict[str, Any]] = one.arrow(settings).to_pylist()
        assert found == [{"access": False, "locked": True, "autoload": False}]
    assert "httpfs" not in sys.modules
