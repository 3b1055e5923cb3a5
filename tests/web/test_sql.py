"""SQL over HTTP: what only reads is answered, all else is refused, and nothing takes the server down."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.web.windows import Answer, Window

from stepscope.web.answers.sql import MOST_ROWS
from stepscope.web.questions import QUESTIONS

pytestmark = pytest.mark.slow


def ask(demo: Window, sql: str, **more: Any) -> Answer:
    """The answer to a query of one page."""
    body = json.dumps({"sql": sql, "asker": "test", **more}).encode()
    return demo.ask("/api/sql", data=body)


def test_rows_come_by_column_with_units(demo: Window) -> None:
    found = ask(demo, "SELECT name, sum(dur_ns) AS total_ns FROM kernels GROUP BY name LIMIT 3").json
    assert [(one["name"], one["type"], one["unit"]) for one in found["columns"]] == [
        ("name", "str", ""),
        ("total_ns", "float", "ns"),
    ]
    assert [len(column) for column in found["values"]] == [3, 3]
    assert (found["rows"], found["more"]) == (3, False)


@pytest.mark.parametrize("question", QUESTIONS, ids=[name for name, _ in QUESTIONS])
def test_every_question_has_an_answer(demo: Window, question: tuple[str, str]) -> None:
    answer = ask(demo, question[1])
    assert answer.status == 200, answer.text


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '/tmp/other.db'",
        "COPY ops TO '/tmp/stolen.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
        "PRAGMA database_list",
        "SET memory_limit = '99GB'",
        "SELECT 1; SELECT 2",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW ops",
        "SELECT getenv('HOME')",
        "EXPLAIN ANALYZE COPY ops TO '/tmp/stolen.csv'",
    ],
)
def test_what_does_more_than_read_is_refused(demo: Window, sql: str) -> None:
    answer = ask(demo, sql)
    assert answer.status == 400
    assert answer.json["problem"]
    assert "root:" not in answer.text
    assert not Path("/tmp/stolen.csv").exists()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"sql": 3}', b'{"sql": " "}'])
def test_what_is_no_query_is_refused(demo: Window, body: bytes) -> None:
    assert demo.ask("/api/sql", data=body).status == 400


def test_a_query_without_end_is_stopped(demo: Window) -> None:
    endless = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    answer = ask(demo, endless, seconds=1)
    assert answer.status == 400
    assert "more than 1 s" in answer.json["problem"]
    assert ask(demo, "SELECT 1 AS one").json["values"] == [[1]]


def test_a_long_answer_is_cut(demo: Window) -> None:
    found = ask(demo, "SELECT range AS n FROM range(1000000000)").json
    assert (found["rows"], found["more"]) == (MOST_ROWS, True)
    assert found["values"][0][-1] == MOST_ROWS - 1


def test_a_long_value_is_cut(demo: Window) -> None:
    (value,) = ask(demo, "SELECT repeat('x', 1000000) AS long").json["values"][0]
    assert len(value) < 3000


def test_a_query_takes_only_so_much_memory(demo: Window) -> None:
    assert ask(demo, "SELECT list(range) FROM range(1000000000)", seconds=30).status == 400
    assert ask(demo, "SELECT 1 AS one").json["values"] == [[1]]


def test_no_digit_of_a_large_number_is_lost(demo: Window) -> None:
    assert ask(demo, "SELECT 9007199254740993 AS n").json["values"] == [["9007199254740993"]]


def test_a_page_that_asks_anew_stops_what_it_asked(demo: Window) -> None:
    endless = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
    first: list[Answer] = []
    asking = threading.Thread(target=lambda: first.append(ask(demo, endless, seconds=60)))
    asking.start()
    time.sleep(1)
    assert ask(demo, "SELECT 2 AS two").json["values"] == [[2]]
    asking.join(20)
    assert first[0].status == 400
    assert "stopped" in first[0].json["problem"]
