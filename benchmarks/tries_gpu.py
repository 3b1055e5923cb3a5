"""`stepscope try` on programs with known faults, on a GPU: what was promised, and what the fix gained.

    python -m benchmarks.tries_gpu FOLDER anomaly_mode …

Each fix is tried in pairs of runs. If FOLDER has a report of a program, `anomaly_mode.json`, the gain of the
finding that the program is about is the promise. Leaves the ledger, `tries.jsonl`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from benchmarks.faults import PROGRAMS

PLAY = "benchmarks.faults.play"


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
    trial = [sys.executable, "-m", "stepscope", "try", "--out", str(folder), "--pairs", "6"]
    for name in names:
        change = ["--set", "--side=mended", *promise_of(name, folder)]
        subprocess.run([*trial, *change, "-m", PLAY, name], check=False)
    subprocess.run([*trial, "--history"], check=False)


if __name__ == "__main__":
    main()
