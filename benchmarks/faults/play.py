"""Runs one side of a program as people run theirs: a loop, until it is ended from outside.

Before the loop, some steps are timed by a clock alone, and the time is printed. `stepscope run --skip` leaves
these out, so that both times are of the same process.

    python -m benchmarks.faults.play anomaly_mode --timed 100
    stepscope run --stop-after --skip 220 -m benchmarks.faults.play anomaly_mode --timed 100

With `--clock` the same steps that the capture measures are timed once more, by the clock of the host: the
program waits for the GPU after the first and before the last of them, and looks at the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what takes long to import is imported before it is this program's turn
from benchmarks.faults import PROGRAMS
from benchmarks.faults.record import block_ns

MOST_SECONDS = 60.0
"""A program in which a capture finds nothing to time for so long is ended."""


def main() -> None:
    """Builds the program's step and calls it over and over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--side", default="faulty")
    parser.add_argument("--timed", type=int, default=0, help="as many steps again are called before them")
    parser.add_argument("--once", action="store_true", help="end after the timed steps")
    parser.add_argument("--clock", help="a file for the time of the steps that the capture measures")
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
        clock = SameSteps(Path(given.clock)).look if given.clock else None
        began = time.monotonic()
        while not given.once:
            step()
            if clock is not None and clock():
                clock = None
            if clock is not None and time.monotonic() - began > MOST_SECONDS:
                break


class SameSteps:
    """Times the steps that a capture in this process measures, by the host's clock.

    Looks at the capture's own clock after each turn of the loop, to know which ones these are. A turn may
    call several of what the capture takes as steps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first: tuple[int, int] | None = None
        self._marks = 0

    def look(self) -> bool:
        """A turn of the loop has ended; whether all steps are timed."""
        call, marks, planned = measuring()
        if not marks:
            self._marks = 0
            return False
        each, self._marks = marks - self._marks, marks
        if self._first is None:
            self._first = (marks, now_ns())
            return False
        # The profiler is attached at the end of the last step, within the turn: that one is left out.
        if marks - 1 + each < planned:
            return False
        first, began_ns = self._first
        told = {"first": first, "last": marks, "ns": now_ns() - began_ns, "each": each, "call": call}
        self._path.write_text(json.dumps(told), encoding="utf-8")
        return True


def measuring() -> tuple[str, int, int]:
    """What ends a step, how many ends the capture of this process has timed, and how many steps it will."""
    control: Any = sys.modules.get("stepscope.capture.control")
    capture = control.current() if control else None
    passes = getattr(capture, "_passes", None)
    clock, span = getattr(passes, "_clock", None), getattr(passes, "_span", None)
    if clock is None or span is None:
        return "", 0, 0
    return capture._finder.call.name, len(clock._host_ns), span.end - span.first  # noqa: SLF001


def now_ns() -> int:
    """The host's clock, when the GPU has done all that it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter_ns()


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
