"""`stepscope run` on programs with known faults, on a GPU: its unprofiled step against a clock.

    python -m benchmarks.capture_gpu FOLDER anomaly_mode …

While the capture measures steps, the program times the same ones, too: it waits for the GPU after the first
and before the last of them and looks at the host's clock. Leaves a run folder for each, and what that clock
said. A program in which the capture finds no steps is ended after a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

PLAY = "benchmarks.faults.play"
SKIPPED = 62
NEAR = 0.03
SIDE_BY_SIDE = 20
"""So many programs are started at once; when they have imported what they need, one at a time runs."""


def captured(name: str, folder: Path) -> str:
    """Captures the faulty side; what was said meanwhile."""
    options = ["--no-report", "--stop-after", "--skip", str(SKIPPED), "--out", str(folder / name)]
    program = [PLAY, name, "--clock", str(folder / f"{name}.clock.json"), "--turn", str(folder / ".turn")]
    command = [sys.executable, "-m", "stepscope", "run", *options, "-m", *program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560)
    return done.stderr[-500:]


def by_clock(rank: dict[str, Any], clock: dict[str, Any]) -> float:
    """How much longer the capture says that steps take than the host's clock says, of the same steps."""
    steps_ns = rank["unprofiled_steps_ns"]
    # An update is marked when it ends, within the turn of the loop; a call when it begins, in the next one.
    shift = 1 if clock["call"] in ("OPTIMIZER", "BACKWARD") else 0
    return sum(steps_ns[clock["first"] - shift : clock["last"] - shift]) / clock["ns"] - 1


def line(name: str, folder: Path) -> None:
    """Times and captures one program, and prints a line about it."""
    said = captured(name, folder)
    try:
        rank = json.loads((folder / name / "rank0.json").read_text(encoding="utf-8"))
        found = rank["unprofiled_step_ns"]
        clock = json.loads((folder / f"{name}.clock.json").read_text(encoding="utf-8"))
    except (OSError, KeyError):
        print(f"{name:32} failed: {said}", flush=True)
        return
    spread = (found["high"] - found["low"]) / 2 / found["mean"]
    same = by_clock(rank, clock)
    mark = "" if abs(same) <= NEAR else " *"
    print(
        f"{name:32} {found['mean'] / 1e6:9.3f} ms ± {spread:.1%}  against a clock, "
        f"{clock['last'] - clock['first']} steps: {same:+.1%}{mark}  {rank['step']['sentence']}",
        *rank["notes"],
        flush=True,
    )


def main() -> None:
    """Times and captures the programs that are named."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(lambda name: line(name, folder), names))


if __name__ == "__main__":
    main()
