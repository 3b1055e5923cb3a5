"""Questions to tables in memory: what interrupts them comes out as an interrupt, wherever it hits."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import Mock

import pyarrow as pa
import pytest

from stepscope.store import connection
from stepscope.store.arrow_sql import ask

# An alarm rings at any moment of a question; nothing but KeyboardInterrupt may come of it.
ALARMS = """
import random, signal
import pyarrow as pa
from stepscope.store.arrow_sql import ask

def ring(*_):
    raise KeyboardInterrupt

rows, chance, seen = pa.table({"a": list(range(200_000))}), random.Random(1), {}
question = "SELECT sum(a + x) AS found FROM rows JOIN (SELECT a AS x FROM rows) ON a = x"
ask(question, rows=rows)
signal.signal(signal.SIGALRM, ring)
for _ in range(400):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00005, 0.008))
            ask(question, rows=rows)
            told = "answered"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        told = type(error).__name__
    seen[told] = seen.get(told, 0) + 1
assert ask(question, rows=rows)["found"].to_pylist() == [200_000 * 199_999]
print(*sorted(seen))
"""


@pytest.mark.slow
def test_an_interrupt_is_no_failed_query() -> None:
    told = subprocess.run([sys.executable, "-c", ALARMS], capture_output=True, text=True, check=True)
    assert set(told.stdout.split()) <= {"KeyboardInterrupt", "answered"}
    assert "KeyboardInterrupt" in told.stdout


@pytest.mark.parametrize(
    "question",
    [
        "SELECT a, b, c, a % 2 = 0 AS even, a::INTEGER AS small FROM given ORDER BY a",
        "SELECT a, [a, b] AS both, sum(a) OVER (ORDER BY a) AS so_far FROM given ORDER BY a",
        "SELECT a FROM given WHERE a > $least ORDER BY a",
        "SELECT a, c FROM given WHERE a < -1",
        "SELECT x.a FROM given x, given y, range(100) ORDER BY 1",
    ],
    ids=["plain types", "other types", "none left", "of no rows", "more rows than there were"],
)
def test_few_rows_are_answered_as_many_are(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = pa.table({"a": list(range(12)), "b": [0.5, None] * 6, "c": ["name", None, "ä"] * 4})
    params = {"least": 100} if "$least" in question else None
    few = Mock(wraps=connection.few)
    monkeypatch.setattr(connection, "few", few)
    found = ask(question, params, given=given)
    assert few.call_count == 1
    monkeypatch.setattr(connection, "FEW_ROWS", 0)
    assert ask(question, params, given=given).equals(found)
    assert few.call_count == 1
    assert found.num_rows in (0, 12, 14_400)
