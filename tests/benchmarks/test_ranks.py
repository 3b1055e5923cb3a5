"""The benchmark of many ranks reads them all and finds the clocks that were planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ranks.py"


@pytest.mark.exhaustive
def test_it_prints_a_table_and_budgets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--ranks", "6", "--engines", "local"],
        env=os.environ | {"STEPSCOPE_BENCH_DIR": str(tmp_path), "STEPSCOPE_SAMPLES": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr  # a busy machine may miss a budget
    assert "made of h200_ddp_gloo_rank0.pt.trace.json.gz, h200_ddp_gloo_rank1.pt.trace.json.gz" in done.stdout
    budgets = dict(re.findall(r"^local, 6 ranks: (.+?) {2,}.* (PASS|MISS)$", done.stdout, re.MULTILINE))
    assert {"time / ideal", "CPU time / ranks alone"} <= set(budgets)
    for name in ("head per rank", "a worker", "clocks off by", "ranks not aligned"):
        assert budgets[name] == "PASS", done.stdout
    assert not list(tmp_path.iterdir())
