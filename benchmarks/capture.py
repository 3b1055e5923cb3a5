"""Measure what the capture costs a program that it does not record: before its passes, and after them.

python benchmarks/capture.py                 against the budgets; exit code 3 on a miss

A training step of about 1 ms on one core is taken in turns with and without the capture, in the same process.
Times are processor time of the thread, so that other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import ingest
import report

import stepscope
from stepscope.capture import control
from stepscope.capture.settings import Settings

STEP_NS = 1_000_000
IN_A_ROW = 30
"""Steps that are taken with or without the capture before it is the other's turn."""
WARM_UP = 12
"""Steps after which the capture knows what a step is."""
NEVER = 1_000_000
IMPORTS = 10


@dataclass(frozen=True)
class Overhead:
    """How long a step takes without and with the capture."""

    label: str
    without_ns: float
    ratio: float

    @property
    def share(self) -> float:
        """What the capture adds to a step."""
        return self.ratio - 1


class Program:
    """A small training: one model, and two optimizers for it, one of which was made under a capture."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(0)
        torch.set_num_threads(1)
        self._torch = torch
        self.layers = 1
        self._resize(1)
        while min(self.times_ns(self.plain, 100)) < STEP_NS:
            self._resize(self.layers + 1)

    def _resize(self, layers: int) -> None:
        torch = self._torch
        self.layers = layers
        parts = [part for _ in range(layers) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*parts)
        self.batch = torch.randn(64, 64)
        self.plain = self.optimizer()

    def optimizer(self) -> Any:
        """An optimizer of a class that torch has not seen yet; it has no state, so several may take turns."""
        sgd = self._torch.optim.SGD
        return type("Sgd", (sgd,), {"step": vars(sgd)["step"]})(self.model.parameters(), lr=1e-6)

    def times_ns(self, optimizer: Any, steps: int) -> list[int]:
        """Takes some steps, and the time of each."""
        marks = [time.thread_time_ns()]
        for _ in range(steps):
            self.model(self.batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            marks.append(time.thread_time_ns())
        return [after - before for before, after in pairwise(marks)]


def in_turns(
    label: str, pairs: int, without: Callable[[], list[int]], within: Callable[[], list[int]]
) -> Overhead:
    """Measures both in turns; the one that comes first changes, too."""
    ratios, plain = [], []
    for pair in range(pairs):
        order = (without, within) if pair % 2 else (within, without)
        times = {
            one: min(one()) for one in order
        }  # the hooks cost the same in every step, other things do not
        ratios.append(times[within] / times[without])
        plain.append(times[without])
    return Overhead(label, statistics.median(plain), statistics.median(ratios))


def before_recording(label: str, program: Program, pairs: int, settings: Settings) -> Overhead:
    """What the hooks cost while they wait for the time of a step to settle, and while they take its time."""
    optimizer = program.plain

    def within() -> list[int]:
        control.begin(replace(settings, folder=tempfile.mkdtemp(dir=settings.folder)), in_code=True)
        program.times_ns(optimizer, WARM_UP)
        times = program.times_ns(optimizer, IN_A_ROW)
        stop(program)
        return times

    def without() -> list[int]:
        program.times_ns(optimizer, WARM_UP)
        return program.times_ns(optimizer, IN_A_ROW)

    return in_turns(label, pairs, without, within)


def after_passes(program: Program, pairs: int, folder: str) -> Overhead:
    """What is left of the capture once everything is recorded."""
    capture = control.begin(Settings(folder, skip=1, steps=1), in_code=True)
    heard = program.optimizer()
    program.times_ns(heard, 40)
    found = in_turns(
        "after the passes",
        pairs,
        lambda: program.times_ns(program.plain, IN_A_ROW),
        lambda: program.times_ns(heard, IN_A_ROW),
    )
    capture.close()
    return found


def noise(program: Program, pairs: int) -> Overhead:
    """What the same measurement finds where there is nothing to find."""
    other = program.optimizer()
    return in_turns(
        "nothing, for comparison",
        pairs,
        lambda: program.times_ns(program.plain, IN_A_ROW),
        lambda: program.times_ns(other, IN_A_ROW),
    )


def stop(program: Program) -> None:
    """Ends the capture, and takes some steps without it."""
    capture = control.current()
    if capture is not None:
        capture.close()
    program.times_ns(program.plain, 2)


def cost_of_step_ns() -> float:
    """What `stepscope.step()` costs where nobody records."""
    calls = 100_000
    found = []
    for _ in range(5):
        begun = time.perf_counter_ns()
        for _ in range(calls):
            stepscope.step()
        found.append((time.perf_counter_ns() - begun) / calls)
    return min(found)


def import_ms(first: str) -> float:
    """How long the import of the capture takes in a fresh process after another one; the best of several."""
    code = (
        f"import time, {first}; begun = time.perf_counter(); import stepscope.capture.control; "
        "print((time.perf_counter() - begun) * 1000)"
    )
    lines = [subprocess.check_output([sys.executable, "-c", code], encoding="utf-8") for _ in range(IMPORTS)]
    return min(map(float, lines))


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=150, help="how often with and without take turns")
    pairs = parser.parse_args(arguments).pairs
    os.environ["KINETO_LOG_LEVEL"] = "6"  # its lines would stand between ours
    print(f"{os.cpu_count()} processors, load before: {os.getloadavg()[0]:.1f} ({report.processor()})")
    program = Program()
    with tempfile.TemporaryDirectory() as folder:
        found = [
            noise(program, pairs),
            before_recording("before the passes", program, pairs, Settings(folder, skip=NEVER)),
            before_recording("in the unprofiled pass", program, pairs, Settings(folder, skip=1, steps=NEVER)),
            after_passes(program, pairs, f"{folder}/after"),
        ]
    print(f"\n{'a training step with the capture':<34}{'step µs':>9}{'added µs':>10}{'added %':>9}")
    for one in found:
        added_us = one.without_ns * one.share / 1000
        print(f"{one.label:<34}{one.without_ns / 1000:>9.0f}{added_us:>10.2f}{one.share * 100:>9.2f}")
    bare, with_torch, step_ns = import_ms("sys"), import_ms("torch"), cost_of_step_ns()
    print(
        f"\nimport of the capture: {bare:.1f} ms in a bare Python, {with_torch:.1f} ms in one that has torch"
    )
    budgets = [
        *(ingest.Budget(f"idle hooks {one.label}", one.share * 100, 0.5, "%") for one in found[1:]),
        ingest.Budget("stepscope.step() without a capture", step_ns / 1000, 1.0, "µs"),
        ingest.Budget("import of the capture beside torch", with_torch, 50, "ms"),
    ]
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
