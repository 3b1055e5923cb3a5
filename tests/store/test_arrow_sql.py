"""Questions to tables in memory: what interrupts them comes out as an interrupt, wherever it hits."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
