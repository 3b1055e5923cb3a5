"""The benchmark of the analyses asks every one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.samples import KEPT

from stepscope import registry

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "analyses.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the generator needs a C++ compiler")
def test_every_analysis_is_measured() -> None:
    command = [sys.executable, str(SCRIPT), "--size", "1MB", "--repeats", "1"]
    done = subprocess.run(
        command,
        env=os.environ | {"STEPSCOPE_BENCH_DIR": str(KEPT / "bench")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = {line.split()[0] for line in done.stdout.splitlines() if line}
    assert set(registry.scan()["analyses"]) | {"opening", "table", "all", "peak"} <= measured
