"""`stepscope run` on programs with known faults, on a GPU: its unprofiled step against a clock.

    python -m benchmarks.capture_gpu FOLDER anomaly_mode …

Each program times some of its own steps with a clock before the capture measures as many others, in the same
process. Leaves a run folder for each, and the host's clock at each step.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

PLAY = "benchmarks.faults.play"
TIMED = 60
NEAR = 0.03
SIDE_BY_SIDE = 4
"""So many programs are imported while one of them runs."""


def played(words: list[str], folder: Path) -> tuple[int | None, str]:
    """What the clock of a program said, and what went wrong."""
    turn = ["--timed", str(TIMED), "--turn", str(folder / ".turn")]
    done = subprocess.run(
        [sys.executable, "-m", *words, *turn], capture_output=True, text=True, check=False, timeout=300
    )
    found = re.search(r"timed_ns (\d+)", done.stdout)
    return int(found[1]) if found else None, done.stderr[-500:]


def captured(name: str, folder: Path) -> tuple[int | None, str]:
    """Captures the faulty side; the time by its own clock."""
    options = ["--no-report", "--stop-after", "--skip", str(2 * TIMED + 2), "--out", str(folder / name)]
    clock = ["--clock", str(folder / f"{name}.clock.json")]
    return played(["stepscope", "run", *options, "-m", PLAY, name, *clock], folder)


def line(name: str, folder: Path) -> None:
    """Times and captures one program, and prints a line about it."""
    clock_ns, said = captured(name, folder)
    try:
        rank = json.loads((folder / name / "rank0.json").read_text(encoding="utf-8"))
        found, start = rank["unprofiled_step_ns"], rank["settled_after"]
        clock = json.loads((folder / f"{name}.clock.json").read_text(encoding="utf-8"))
    except (OSError, KeyError):
        print(f"{name:32} failed: {said}", flush=True)
        return
    first = start - clock["first"] - 1
    steps = found["steps"] - 1  # in the last one, the profiler is attached
    same_ns = (clock["ends_ns"][first + steps] - clock["ends_ns"][first]) / steps
    spread = (found["high"] - found["low"]) / 2 / found["mean"]
    before, same = (found["mean"] / other - 1 for other in (clock_ns or found["mean"], same_ns))
    mark = "" if abs(same) <= NEAR else " *"
    print(
        f"{name:32} {found['mean'] / 1e6:9.3f} ms ± {spread:.1%}  by a clock: same steps {same:+.1%}{mark}, "
        f"steps before {before:+.1%}  {rank['step']['sentence']}",
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
