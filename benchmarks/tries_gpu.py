"""`stepscope try` on programs with known faults, on a GPU: what was promised, and what the fix gained.

    python -m benchmarks.tries_gpu FOLDER anomaly_mode …

Each fix is tried in pairs of runs. If FOLDER has a report of a program, `anomaly_mode.json`, the gain of the
finding that the program is about is the promise. Leaves the ledger, `tries.jsonl`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from benchmarks.faults import PROGRAMS

PLAY = "benchmarks.faults.play"
PAIRS = 3


def promise_of(name: str, folder: Path) -> list[str]:
    """What to say of the promise that a report makes, if there is one."""
    report = folder / f"{name}.json"
    if not report.exists():
        return []
    found = {one["id"] for one in json.loads(report.read_text(encoding="utf-8"))["findings"]}
    expected = (PROGRAMS[name].finding or "").replace("_", "-")
    return ["--run", str(report), "--finding", expected] if expected in found else []


def main() -> None:
    """Tries the fixes of the programs that are named."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    trial = [sys.executable, "-m", "stepscope", "try", "--out", str(folder), "--skip", "30", "--steps", "40"]

    def tried(name: str) -> None:
        change = ["--pairs", str(PAIRS), "--set", "--side=mended", *promise_of(name, folder)]
        program = ["-m", PLAY, name, "--turn", str(folder / ".turn")]
        done = subprocess.run([*trial, *change, *program], capture_output=True, text=True, check=False)
        print(f"== {name}\n{done.stdout}{done.stderr[-600:] if done.returncode else ''}", flush=True)

    # They are started side by side, but take turns on the GPU.
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(tried, names))
    subprocess.run([*trial, "--history"], check=False)


if __name__ == "__main__":
    main()
