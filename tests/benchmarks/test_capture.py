"""The benchmark of the capture runs, and its figures can be believed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "capture.py"


@pytest.mark.exhaustive
def test_it_prints_a_table_and_budgets(torch: Any) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--pairs", "3"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode in (0, 3), done.stderr  # a busy machine may miss a budget
    rows = dict(re.findall(r"^([a-z ,]+?) {2,}(\d+) +-?[\d.]+ +-?[\d.]+$", done.stdout, re.MULTILINE))
    assert set(rows) == {
        "nothing, for comparison",
        "before the passes",
        "in the unprofiled pass",
        "after the passes",
    }
    assert all(int(step_us) > 0 for step_us in rows.values())
    assert len(re.findall(r"(?:PASS|MISS)$", done.stdout, re.MULTILINE)) == 5
