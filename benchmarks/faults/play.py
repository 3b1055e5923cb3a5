"""Runs one side of a program as people run theirs: a loop, until it is ended from outside.

python -m benchmarks.faults.play anomaly_mode                   for `stepscope run --stop-after`
python -m benchmarks.faults.play anomaly_mode --side=mended --time    prints how long a step takes
"""

from __future__ import annotations

import argparse
import json
import os

import torch
from benchmarks.faults import PROGRAMS
from benchmarks.faults.record import measured, warm


def main() -> None:
    """Builds the program's step and calls it over and over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--side", default="faulty")
    parser.add_argument("--time", action="store_true")
    given = parser.parse_args()
    program = PROGRAMS[given.name]
    if given.side == "faulty":
        os.environ |= program.environment
    torch.manual_seed(1)
    step = program.sides[given.side]()
    if given.time:
        warm(step)
        print(json.dumps(measured(step)))
        return
    while True:
        step()


if __name__ == "__main__":
    main()
