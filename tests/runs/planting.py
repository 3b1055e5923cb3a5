"""Records the program with planted faults, as `stepscope run` does under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["STEPS", "planted"]

PROGRAM = Path(__file__).parent / "planted" / "training.py"
STEPS = 60


def planted(folder: Path, *, ranks: int, late: int, fault: str, ms: float) -> Path:
    """The run of a program in which one rank has a fault."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = [*launcher, str(PROGRAM), str(STEPS), str(late), fault, str(ms)]
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "run", "--no-report", "--out", str(folder), "--", *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return folder
