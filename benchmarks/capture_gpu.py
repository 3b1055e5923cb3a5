"""`stepscope run` on programs with known faults, on a GPU: its unprofiled step against a clock.

    python -m benchmarks.capture_gpu FOLDER anomaly_mode …

Each program is timed in a process of its own, captured in another, and its mended side is timed. Leaves a run
folder for each, and `timed.json` with what the clock said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch

PLAY = "benchmarks.faults.play"
NEAR = 0.03


def timed_ns(name: str, side: str) -> int | None:
    """How long a step of one side takes, by a clock alone."""
    done = subprocess.run(
        [sys.executable, "-m", PLAY, name, f"--side={side}", "--time"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-400:], file=sys.stderr)
        return None
    return int(json.loads(done.stdout.splitlines()[-1])["unprofiled_step_ns"])


def captured_ns(name: str, folder: Path) -> dict[str, int] | None:
    """What the capture measured of the faulty side."""
    run = [sys.executable, "-m", "stepscope", "run", "--no-report", "--stop-after", "--out", str(folder)]
    done = subprocess.run([*run, "-m", PLAY, name], capture_output=True, text=True, check=False)
    try:
        rank = json.loads((folder / "rank0.json").read_text(encoding="utf-8"))
    except OSError:
        print(done.stderr[-800:], file=sys.stderr)
        return None
    print("   ", rank["step"]["sentence"], rank["notes"], f"exit {done.returncode}")
    found: dict[str, int] | None = rank.get("unprofiled_step_ns")
    return found


def main() -> None:
    """Times and captures the programs that are named."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    timed = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name in names:
        found = captured_ns(name, folder / name)
        before, after = timed_ns(name, "faulty"), timed_ns(name, "mended")
        timed[name] = {"faulty": before, "mended": after, "captured": found}
        (folder / "timed.json").write_text(json.dumps(timed, indent=1), encoding="utf-8")
        if found and before:
            off = found["mean"] / before - 1
            mark = "" if abs(off) <= NEAR else "  *"
            spread = (found["high"] - found["low"]) / 2 / found["mean"]
            both = f"{before / 1e6:9.3f} ms  {found['mean'] / 1e6:9.3f} ms ± {spread:.1%}"
            print(f"{name:32} {both}  {off:+.1%}{mark}", flush=True)
        else:
            print(f"{name:32} failed", flush=True)


if __name__ == "__main__":
    main()
