"""What fixing a late rank gains: predicted from the run with the fault, against the run without it.

`python -m benchmarks.stragglers [--ranks 2 4 8]` records a small program over gloo with a fault on one rank,
and once without. Predicted is the gain of the finding, as a part of the step; measured is the step without
the profiler, of both runs. Ranks that have to share cores make both of them vary.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.runs.planting import planted

FAULTS = {"input": 60.0, "work": 100.0, "host": 60.0, "collector": 60.0, "checkpoint": 200.0}
"""Milliseconds by fault; each rank more takes as long again where ranks share cores."""


def main() -> None:
    """Prints a line for each fault and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--faults", nargs="+", default=list(FAULTS))
    asked = parser.parse_args()
    print(
        f"{'ranks':>5} {'fault':<11} {'found':<26} {'rank':<5} {'predicted':<12} {'measured':<9} inside",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as base:
        for ranks in asked.ranks:
            plain = planted(Path(base) / f"plain{ranks}", ranks=ranks, late=-1, fault="none", ms=0)
            for fault in asked.faults:
                ms, late = FAULTS[fault] * max(1, ranks // 2), ranks - 1
                faulty = planted(Path(base) / f"{fault}{ranks}", ranks=ranks, late=late, fault=fault, ms=ms)
                print(f"{ranks:>5} {fault:<11} {_line(plain, faulty, late)}", flush=True)


def _line(plain: Path, faulty: Path, late: int) -> str:
    measured = 1 - _measured_ns(plain) / _measured_ns(faulty)
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "report", str(faulty), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    ours = [one for one in report["findings"] if one["evidence"].get("ranks") is not None]
    if not ours:
        return f"{'nothing':<26} {'':<5} {'':<12} {measured:<9.0%}"
    first = ours[0]
    low, high = first["gain"]["low_share"], first["gain"]["high_share"]
    named = "right" if first["evidence"].get("rank") == late else "wrong"
    inside = "yes" if low <= measured <= high else "no"
    return f"{first['id']:<26} {named:<5} {f'{low:.0%} … {high:.0%}':<12} {measured:<9.0%} {inside}"


def _measured_ns(run: Path) -> float:
    """The step without the profiler: the median of the ranks."""
    told = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return median(rank["unprofiled_step_ns"]["mean"] for rank in told["ranks"])


if __name__ == "__main__":
    main()
