"""Looking for a program's modules does nothing to the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "building_tuples.py"


@pytest.mark.slow
def test_tuples_are_built_while_modules_are_looked_for(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "stepscope", "run", "--no-report", "--light", "--out", str(tmp_path / "run")]
    done = subprocess.run([*run, str(PROGRAM)], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "built True\n"
    rank = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"][0]
    assert rank["step"]["sentence"] == "A step is one call of Sequential."
