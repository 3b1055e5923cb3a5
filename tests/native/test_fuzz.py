"""A short run of the fuzzer with a fixed seed; `make fuzz` runs it for longer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.trying import tries

ROOT = Path(__file__).parent.parent.parent
BUILT = ROOT / "build" / "fuzz"
SEED = 20260101


def built(program: str) -> Path:
    """A folder with the program, compiled anew where a source changed, and traces to begin with."""
    if not shutil.which("make"):
        pytest.skip("there is no make")
    wanted = [f"build/fuzz/{name}" for name in (program, "traces")]
    made = subprocess.run(["make", "-j2", *wanted], cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode and "fsanitize" in made.stderr + made.stdout and "unrecognized" in made.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert made.returncode == 0, made.stderr
    return BUILT


@pytest.mark.exhaustive  # to compile the reader with sanitizers takes a minute
@pytest.mark.parametrize("program,few", [("reader", 700), ("reader-scalar", 200)])
def test_mutated_traces_are_read_alike_on_both_paths(program: str, few: int, tmp_path: Path) -> None:
    fuzzers, number = built(program), tries(few)
    traces = sorted((fuzzers / "traces").glob("*.json"))
    assert traces
    run = subprocess.run(
        [fuzzers / program, str(SEED), "0", str(number), *traces],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert f"{number} traces" in run.stdout
