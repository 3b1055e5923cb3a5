"""Measure how long the report takes, from the file to the last line, against reading the same file.

python benchmarks/report.py                 0.5 MB, 10 MB and 1 GB against the budgets; exit code 3 on a miss
python benchmarks/report.py --size 20GB     one table
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from pathlib import Path

import ingest
import traces

FEW_BYTES = 500_000
SMALL_BYTES = 10_000_000
LARGE_BYTES = 1_000_000_000
MIB = 1 << 20


def measured(raw_bytes: int, repeats: int, stores: Path) -> tuple[ingest.Cost, ingest.Cost]:
    """What reading a trace of one size takes, and what reading and reporting take, each at its best."""
    trace = traces.cached(traces.Recipe(raw_bytes))
    costs: dict[str, list[ingest.Cost]] = {"ingest": [], "report": []}
    for _ in range(repeats):
        for command, found in costs.items():
            shutil.rmtree(stores / command, ignore_errors=True)
            line = ingest.stepscope(command, str(trace), "--store", str(stores / command))
            found.append(ingest.run(line))
    reading, reporting = (ingest.best(found) for found in costs.values())
    print(f"\n{raw_bytes / 1e9:.2f} GB of JSON{'wall s':>14}{'x ingest':>10}{'MiB':>8}")
    for label, cost in (("ingest", reading), ("ingest and report", reporting)):
        ratio = cost.wall_s / reading.wall_s
        print(f"{label:<20}{cost.wall_s:>11.2f}{ratio:>10.2f}{cost.peak_bytes / MIB:>8.0f}")
    return reading, reporting


def processor() -> str:
    """The name of the processor, as far as the machine tells it."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part")))
    return next(names, "") or platform.processor() or platform.machine()


def small_report(stores: Path, repeats: int = 5) -> float:
    """CPU seconds of a report on a small trace, from the file: process, imports and store included."""
    trace = traces.cached(traces.Recipe(FEW_BYTES))
    found = []
    for _ in range(1 + repeats):  # the first one may have to compile modules
        shutil.rmtree(stores / "few", ignore_errors=True)
        found.append(ingest.run(ingest.stepscope("report", str(trace), "--store", str(stores / "few"))).cpu_s)
    best = min(found[1:])
    print(f"\nreport on {FEW_BYTES / 1e6:.1f} MB of JSON: {best:.2f} s of CPU time ({processor()})")
    return best


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, help="size of the JSON text; no budgets")
    parser.add_argument("--repeats", type=int, default=2, help="runs, the best of which counts")
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} processors, load before: {os.getloadavg()[0]:.1f}")
    with ingest.store_folder(None) as stores:
        if options.size:
            measured(options.size, 1, stores)
            return 0
        few = small_report(stores)
        _, small = measured(SMALL_BYTES, options.repeats, stores)
        reading, large = measured(LARGE_BYTES, options.repeats, stores)
    budgets = [
        ingest.Budget("report on a small trace, CPU time", few, 0.8, "s"),
        ingest.Budget("report at 10 MB", small.wall_s, 3.0, "s"),
        ingest.Budget("report at 1 GB, against ingest", large.wall_s / reading.wall_s, 4.0, "x"),
        ingest.Budget("its peak memory", large.peak_bytes / MIB, 2048, "MiB"),
    ]
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
