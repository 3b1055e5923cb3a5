"""Measure how long every analysis takes on a trace that has been read, beside decompressing it.

python benchmarks/analyses.py                     1 GB and 10 MB against the budgets; exit code 3 on a miss
python benchmarks/analyses.py --size 4GB          one table

On the large trace one process asks every analysis once, in order. Tables that several of them share are made
at first use; they have rows of their own. On the small trace every analysis starts without them. The best of
several runs counts, because a machine is rarely quiet.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ingest
import traces

LARGE_BYTES = 1_000_000_000
SMALL_BYTES = 10_000_000
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking all analyses took: each at its best, all of them in the best run, and the highest peak."""

    seconds: dict[str, float]
    total_s: float
    peak_bytes: int


# ---------------------------------------------------------------- in the measured process


def questions() -> dict[str, Any]:
    """All analyses, by name."""
    from stepscope import registry

    return {
        name: getattr(importlib.import_module(f"stepscope.analyses.{name}"), name)
        for name in registry.scan()["analyses"]
    }


def forget(store: Path) -> None:
    """Remove the tables that are made at first use."""
    from stepscope.schema import DERIVED

    for making in DERIVED:
        for name in making.names:
            (store / f"{name}.parquet").unlink(missing_ok=True)


def timed(question: Callable[[], object]) -> float:
    """How long an answer takes."""
    start = time.perf_counter()
    question()
    return time.perf_counter() - start


def ask_all(store: Path) -> dict[str, float]:
    """Make the tables that analyses share, then ask every analysis."""
    import stepscope
    from stepscope.schema import DERIVED

    forget(store)
    asked = questions()
    trace = stepscope.open(store)
    seconds = {"opening": timed(lambda: trace.arrow("SELECT count(*) FROM meta"))}
    read = {view for analysis in asked.values() for view in analysis.reads}
    for name in (name for making in DERIVED for name in making.names[:1] if read & set(making.names)):
        seconds[f"table {name}"] = timed(lambda n=name: trace.arrow(f"SELECT 1 FROM {n} LIMIT 1"))
    return seconds | {name: timed(lambda a=analysis: a(trace)) for name, analysis in asked.items()}


def ask_each(store: Path) -> dict[str, float]:
    """Ask every analysis of a store without made tables."""
    import stepscope

    seconds = {}
    asked = questions()
    stepscope.open(store).arrow("SELECT count(*) FROM events")  # what every program does once
    for name, analysis in asked.items():
        forget(store)
        seconds[name] = timed(lambda a=analysis: a(stepscope.open(store)))
    return seconds


# ---------------------------------------------------------------- around it


def measure(store: Path, how: str, repeats: int) -> Asked:
    """The best of several processes that ask everything."""
    command = [sys.executable, __file__, how, str(store)]
    costs = [ingest.run(command) for _ in range(repeats)]
    runs = [json.loads(cost.output) for cost in costs]
    fastest = {name: min(run[name] for run in runs) for name in runs[0]}
    total_s = min(sum(run.values()) for run in runs)
    return Asked(fastest, total_s, max(cost.peak_bytes for cost in costs))


def ingested(trace: Path, stores: Path) -> Path:
    """Read a trace; return its store."""
    folder = stores / trace.name.removesuffix(".pt.trace.json.gz")
    done = ingest.run(ingest.stepscope("ingest", str(trace), "--store", str(folder)))
    return Path(done.output.splitlines()[0])


def print_table(trace: Path, asked: Asked, unit_s: float) -> None:
    """Print one row per analysis, the slowest first."""
    summary = traces.summary_of(trace)
    events = sum(summary.events.values())
    print(
        f"\n{summary.raw_bytes / 1e9:.2f} GB of JSON, {events:,} events; decompression alone {unit_s:.2f} s"
    )
    print(f"{'':<28}{'wall s':>9}{'x decompr.':>12}")
    for name, seconds in sorted(asked.seconds.items(), key=lambda item: -item[1]):
        print(f"{name:<28}{seconds:>9.3f}{seconds / unit_s:>12.3f}")
    print(f"{'all together':<28}{asked.total_s:>9.2f}{asked.total_s / unit_s:>12.2f}")
    print(f"{'peak memory':<28}{asked.peak_bytes / MIB:>9.0f} MiB")


def one_size(raw_bytes: int, how: str, repeats: int, stores: Path) -> Asked:
    """Read a trace of one size, ask everything, print the table."""
    trace = traces.cached(traces.Recipe(raw_bytes))
    unit = ingest.best([ingest.run(ingest.python(ingest.DECOMPRESS_CODE, trace)) for _ in range(repeats)])
    asked = measure(ingested(trace, stores), how, repeats)
    print_table(trace, asked, unit.wall_s)
    return asked


def budgets_of(large: Asked, small: Asked) -> Iterator[ingest.Budget]:
    """Hold both sizes against what was promised."""
    slowest = max(small.seconds, key=small.seconds.__getitem__)
    yield ingest.Budget("all analyses at 1 GB", large.total_s, 20.0, "s")
    yield ingest.Budget("peak memory at 1 GB", large.peak_bytes / MIB, 2048, "MiB")
    yield ingest.Budget(f"slowest at 10 MB: {slowest}", small.seconds[slowest], 1.0, "s")


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, help="size of the JSON text; no budgets")
    parser.add_argument("--repeats", type=int, default=2, help="runs, the best of which counts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the stores in this folder")
    parser.add_argument("--all", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--each", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.all or options.each:
        print(json.dumps(ask_all(options.all) if options.all else ask_each(options.each)))
        return 0
    print(f"{os.cpu_count()} processors, load before: {os.getloadavg()[0]:.1f}")
    with ingest.store_folder(options.keep) as stores:
        if options.size:
            one_size(options.size, "--all", options.repeats, stores)
            return 0
        large = one_size(LARGE_BYTES, "--all", options.repeats, stores)
        small = one_size(SMALL_BYTES, "--each", options.repeats, stores)
    budgets = list(budgets_of(large, small))
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
