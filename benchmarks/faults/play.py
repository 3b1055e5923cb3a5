"""Runs one side of a program as people run theirs: a loop, until it is ended from outside.

Before the loop, some steps are timed by a clock alone, and the time is printed. `stepscope run --skip` leaves
these out, so that both times are of the same process.

    python -m benchmarks.faults.play anomaly_mode --timed 100
    stepscope run --stop-after --skip 220 -m benchmarks.faults.play anomaly_mode --timed 100
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo  # what takes long to import is imported before it is this program's turn
from benchmarks.faults import PROGRAMS
from benchmarks.faults.record import block_ns


def main() -> None:
    """Builds the program's step and calls it over and over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--side", default="faulty")
    parser.add_argument("--timed", type=int, default=0, help="as many steps again are called before them")
    parser.add_argument("--once", action="store_true", help="end after the timed steps")
    parser.add_argument("--clock", help="a file for the times at which steps of the loop end")
    parser.add_argument("--turn", help="a file: of the programs that name it, one runs at a time")
    given = parser.parse_args()
    program = PROGRAMS[given.name]
    if given.side == "faulty":
        os.environ |= program.environment
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    with turn(given.turn):
        torch.manual_seed(1)
        step = program.sides[given.side]()
        for _ in range(given.timed):
            step()
        if given.timed:
            print(f"timed_ns {block_ns(step, given.timed):.0f}", flush=True)
        ends_ns: list[int] = []
        try:
            while not given.once:
                step()
                ends_ns.append(time.perf_counter_ns())
        finally:
            # By the clock of the host: the steps that the capture measures end with some of these.
            if given.clock:
                Path(given.clock).write_text(json.dumps({"first": 2 * given.timed, "ends_ns": ends_ns}))


@contextlib.contextmanager
def turn(file: str | None) -> Iterator[None]:
    """Waits until no other program has its turn."""
    if file is None:
        yield
        return
    with Path(file).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()
