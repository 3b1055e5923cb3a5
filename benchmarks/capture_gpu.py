"""`stepscope run` on programs with known faults, on a GPU: its unprofiled step against a clock.

    python -m benchmarks.capture_gpu FOLDER anomaly_mode …

Each program times some of its own steps with a clock before the capture measures as many others, in the same
process; the mended side is timed in another one. Leaves a run folder for each, and `timed.json`.
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
    return played(["stepscope", "run", *options, "-m", PLAY, name], folder)


def line(name: str, folder: Path) -> dict[str, object]:
    """Times and captures one program, and prints a line about it."""
    clock_ns, said = captured(name, folder)
    mended_ns, _ = played([PLAY, name, "--side=mended", "--once"], folder)
    try:
        rank = json.loads((folder / name / "rank0.json").read_text(encoding="utf-8"))
        found = rank["unprofiled_step_ns"]
    except (OSError, KeyError):
        print(f"{name:32} failed: {said}", flush=True)
        return {"clock": clock_ns, "mended": mended_ns, "captured": None}
    off = found["mean"] / (clock_ns or found["mean"]) - 1
    spread = (found["high"] - found["low"]) / 2 / found["mean"]
    both = f"{(clock_ns or 0) / 1e6:9.3f} ms  {found['mean'] / 1e6:9.3f} ms ± {spread:.1%}  {off:+.1%}"
    print(
        f"{name:32} {both}{'' if abs(off) <= NEAR else ' *'}  {rank['step']['sentence']}",
        *rank["notes"],
        flush=True,
    )
    return {"clock": clock_ns, "mended": mended_ns, "captured": found}


def main() -> None:
    """Times and captures the programs that are named."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        timed = dict(zip(names, pool.map(lambda name: line(name, folder), names), strict=True))
    (folder / "timed.json").write_text(json.dumps(timed, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
