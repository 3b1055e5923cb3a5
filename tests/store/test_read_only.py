"""The fence: a query reads the store and nothing else, and changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.drawing import Drawing

import stepscope
from stepscope.errors import StepscopeError
from stepscope.store import read_only
from stepscope.store.read_only import ReadOnlyDatabase
from stepscope.store.sums import StoreFiles
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


WRITES = [
    "COPY (SELECT 1 AS a) TO '{store}/ops.parquet' (FORMAT parquet)",
    "COPY (SELECT 1 AS a) TO '{store}/new.csv' (USE_TMP_FILE false)",
    "COPY stored.meta TO '{store}/new.csv'",
    "COPY stored.meta FROM '{root}/secret.txt'",
    "INSERT INTO stored.meta VALUES ('a', 'b')",
    "INSERT INTO stored.meta VALUES ('a', 'b') RETURNING *",
    "UPDATE stored.meta SET value = '1'",
    "DELETE FROM stored.names",
    "TRUNCATE stored.names",
    "MERGE INTO stored.names USING stored.names AS o ON true WHEN MATCHED THEN DELETE",
    "CREATE TABLE views.a AS SELECT 1",
    "DROP VIEW ops",
    "ATTACH '{root}/a.db'",
    "CALL pragma_version()",
    "SET threads = 1",
    "EXPLAIN ANALYZE DELETE FROM stored.names",
]
"""Statements that change something, to stand where only a query should."""

AROUND = [
    "WITH x AS ({}) SELECT * FROM x",
    "WITH x AS ({}) SELECT 1",
    "WITH x AS MATERIALIZED ({}) SELECT 1",
    "WITH RECURSIVE x AS ({}) SELECT * FROM x",
    "WITH a AS (WITH x AS ({}) SELECT 1) SELECT * FROM a",
    "SELECT (WITH x AS ({}) SELECT count(*) FROM x)",
    "SELECT 1 WHERE EXISTS (WITH x AS ({}) SELECT * FROM x)",
    "FROM ops, LATERAL (WITH x AS ({}) SELECT 1)",
    "SELECT 1 UNION ALL (WITH x AS ({}) SELECT 1)",
    "SELECT list_transform([1], lambda i: (WITH x AS ({}) SELECT 1))",
    "SELECT 1 ORDER BY (WITH x AS ({}) SELECT 1)",
    "SELECT 1 LIMIT (WITH x AS ({}) SELECT 1)",
    "DESCRIBE (WITH x AS ({}) SELECT * FROM x)",
    "SUMMARIZE (WITH x AS ({}) SELECT * FROM x)",
    "FROM (PIVOT (WITH x AS ({}) SELECT 1 AS a, 2 AS b) ON a IN (1) USING sum(b))",
    "EXPLAIN ANALYZE WITH x AS ({}) SELECT * FROM x",
    "FROM ({})",
    "SELECT ({})",
    "{}",
]


@pytest.mark.parametrize("around", AROUND)
def test_no_statement_that_changes_something_hides_in_a_query(around: str, trace: Trace) -> None:
    names = trace.arrow("FROM names ORDER BY id")
    for write in WRITES:
        refused(trace, around.replace("{}", write))
    assert trace.arrow("FROM names ORDER BY id").equals(names)


def test_what_only_the_tree_tells_is_refused_by_the_tree(trace: Trace) -> None:
    """On a DuckDB that takes such statements for a SELECT; others do not parse them."""
    error = refused(trace, "WITH x AS (INSERT INTO stored.meta VALUES ('a', 'b')) SELECT 1")
    assert re.search("INSERT is not allowed|CTE needs a SELECT", error.message)


@pytest.mark.parametrize("write", WRITES)
def test_an_engine_that_is_asked_past_the_check_cannot_reach_a_file(write: str, trace: Trace) -> None:
    root = trace.folder.parent.parent
    before = digests(root)
    cursor = ReadOnlyDatabase(StoreFiles(trace.folder), trace.meta).cursor({})
    # Tables in its own memory may change: they are gone with it.
    with contextlib.suppress(duckdb.Error):
        cursor.execute(write.replace("{root}", str(root)).replace("{store}", str(trace.folder))).fetchall()
        assert "'{" not in write, "this names a file"
    assert digests(root) == before


def test_table_functions_that_are_not_known_to_only_read_are_refused(trace: Trace) -> None:
    found = trace.arrow(
        "SELECT DISTINCT function_name AS name FROM duckdb_functions() WHERE function_type = 'table'"
    )
    names = set(found["name"].to_pylist())
    assert {"read_text", "query", "glob", "read_parquet"} <= names
    allowed = {name for name in names if is_allowed(trace, f"SELECT * FROM {name}()")}
    assert allowed <= read_only._TABLE_FUNCTIONS
    assert {"range", "unnest", "duckdb_columns"} <= allowed


def is_allowed(trace: Trace, sql: str) -> bool:
    try:
        trace.arrow(sql)
    except StepscopeError as error:
        return "is not allowed" not in error.message
    return True


@pytest.mark.parametrize("sql", ["SELECT write_log('a')", "SELECT sleep_ms(1)", "SELECT nextval('a')"])
def test_functions_that_do_something_are_refused(sql: str, trace: Trace) -> None:
    assert "is not allowed" in refused(trace, sql).message


def test_a_long_query_is_refused_before_it_is_parsed(trace: Trace) -> None:
    assert "characters" in refused(trace, f"SELECT {'(' * 60_000}1{')' * 60_000}").message


@pytest.mark.parametrize("depth", [900, 2_000, 20_000])
def test_a_deep_query_is_answered_or_refused(depth: int, trace: Trace) -> None:
    with contextlib.suppress(StepscopeError):
        trace.arrow(f"SELECT {'(' * depth}1{')' * depth}")


def test_a_query_that_takes_too_long_is_stopped(trace: Trace) -> None:
    fresh = Trace(trace.folder)
    fresh.time_limit_s = 0.3
    sql = "SELECT count(*) FROM range(1000000000) a(i), range(1000) b(j) WHERE hash(i + j) % 7 = 3"
    for ask in (fresh.arrow, lambda sql: list(fresh.batches(sql)), fresh.rows):
        began = time.monotonic()
        with pytest.raises(StepscopeError, match=r"more than 0\.3 s") as found:
            ask(sql)
        assert "--time-limit" in found.value.hint
        assert time.monotonic() - began < 20
    assert fresh.arrow("SELECT 1 AS a")["a"].to_pylist() == [1]


@pytest.mark.slow
def test_a_query_that_wants_too_much_memory_is_refused(trace: Trace) -> None:
    with pytest.raises(StepscopeError, match="Out of Memory"):
        trace.arrow("SELECT len(list(i)) FROM range(1000000000) t(i)")


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
        "SELECT name, sum(dur_ns) OVER (PARTITION BY name ORDER BY start_ns) FROM ops QUALIFY true",
        "SELECT list_transform([1, 2], lambda i: i + 1), [x * 2 FOR x IN [1, 2] IF x > 1]",
        "SELECT {'a': 1}, MAP {'b': 2}, $$COPY$$, ['INSERT'][1], INTERVAL 1 DAY, TRY_CAST('a' AS INT)",
        "SELECT * EXCLUDE (name) REPLACE (1 AS dur_ns) FROM ops ORDER BY ALL DESC NULLS LAST LIMIT 100%",
        "SELECT o.name FROM ops o ASOF JOIN kernels k ON o.start_ns <= k.start_ns",
        "SELECT * FROM ops, LATERAL (SELECT dur_ns + 1)",
        "SELECT count(*) FROM ops GROUP BY GROUPING SETS ((name), ())",
        "SELECT CASE WHEN dur_ns BETWEEN 1 AND 2 THEN 'a' ELSE name COLLATE NOCASE END FROM ops",
        "SELECT CAST(dur_ns AS DECIMAL(18, 3)), NULL::STRUCT(a INT)[], dur_ns::HUGEINT FROM ops",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT * FROM t",
        "FROM (PIVOT ops ON name IN ('aten::mm') USING sum(dur_ns))",
        "SELECT DISTINCT ON (name) name FROM ops USING SAMPLE 10 ROWS",
        "SELECT unnest(range(3)), * FROM json_each('{\"a\": 1}')",
        "SELECT args->>'$.a', name LIKE 'a%', regexp_matches(name, 'x') FROM ops",
        "SELECT COLUMNS('dur.*') FROM ops",
        "SELECT * FROM analyses.ops",
    ],
)
def test_reading_is_allowed(sql: str, trace: Trace) -> None:
    assert trace.arrow(sql).num_rows


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT name FROM OPS UNION ALL SELECT name FROM "Kernels" ORDER BY ALL',
        "SELECT (SELECT count(*) FROM views.kernels) + (SELECT count(*) FROM stored.ops) AS n",
        "WITH mine AS (FROM kernels) SELECT k.name FROM mine JOIN memory.views.device_work k USING (event)",
        "SHOW TABLES",
        "DESCRIBE launches",
        "SELECT view_name FROM duckdb_views() WHERE schema_name = 'views' ORDER BY ALL",
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'views' ORDER BY ALL",
        "SELECT viewname FROM pg_catalog.pg_views WHERE schemaname = 'views' ORDER BY ALL",
        "SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY ALL",
        "SELECT name FROM pragma_table_info('views.ops') ORDER BY ALL",
        "SELECT count FROM histogram(ops, dur_ns) ORDER BY ALL",
        "SELECT * FROM opz",
        "SELECT nothing FROM ops",
    ],
)
def test_views_are_made_as_they_are_named_and_nobody_notices(sql: str, tmp_path: Path) -> None:
    def told(trace: Trace) -> Any:
        try:
            return trace.arrow(sql).to_pylist()
        except StepscopeError as error:
            return error.message, error.hint

    first, other = (stepscope.open(DRAWN.write(tmp_path / "a.json"), store=tmp_path) for _ in range(2))
    assert other.arrow("SHOW TABLES").num_rows > 30
    assert told(first) == told(other) != []


def test_a_query_makes_the_views_that_it_names(tmp_path: Path) -> None:
    trace = stepscope.open(DRAWN.write(tmp_path / "a.json"), store=tmp_path)
    trace.arrow("SELECT count(*) FROM ops WHERE name = 'kernels'")
    assert trace._shared._read_only._made == {"ops"}


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
    assert Path(found).parent.parent == tmp_path
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
