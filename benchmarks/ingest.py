"""Measure how fast a trace is read, beside decompressing it and beside other programs.

python benchmarks/ingest.py --size 1GB            one table
python benchmarks/ingest.py --size 1GB --peers    also json.load, and HTA where it is installed
python benchmarks/ingest.py --scale               1 GB and 4 GB against the budgets; exit code 3 on a miss

Every figure is a whole process, from start to exit. The best of several runs counts, and the programs take
turns, because a machine is rarely quiet.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import traces

MIB = 1 << 20
PEERS_UP_TO_BYTES = 1_500_000_000
SMALL_BYTES = 1_000_000_000
LARGE_BYTES = 4_000_000_000

DECOMPRESSION = "decompression alone"
INGEST = "stepscope ingest"
SHOW = "stepscope show categories"

DECOMPRESS_CODE = """
import sys
try:
    from isal import igzip as gzip
except ImportError:
    import gzip
block = bytearray(1 << 20)
total = 0
with gzip.open(sys.argv[1]) as stream:
    while count := stream.readinto(block):
        total += count
print(total)
"""
JSON_CODE = "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"
HTA_CODE = """
import os, sys
from hta.trace_analysis import TraceAnalysis
folder, name = os.path.split(sys.argv[1])
TraceAnalysis(trace_files={0: name}, trace_dir=folder)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of a program took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


@dataclass(frozen=True, slots=True)
class Case:
    """A program to measure, given the trace and a folder for the store."""

    label: str
    command: Callable[[Path, Path], list[str]]
    needs_empty_store: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on one measured number."""

    label: str
    measured: float
    limit: float
    unit: str

    @property
    def kept(self) -> bool:
        """Whether the number is within the limit."""
        return self.measured <= self.limit


def stepscope(*arguments: str) -> list[str]:
    """The command line of stepscope under this very Python."""
    return [sys.executable, "-m", "stepscope", *arguments]


def python(code: str, trace: Path) -> list[str]:
    """The command line that runs a piece of code on a trace."""
    return [sys.executable, "-c", code, str(trace)]


OUR_CASES = (
    Case(DECOMPRESSION, lambda trace, _: python(DECOMPRESS_CODE, trace)),
    Case(
        INGEST,
        lambda trace, store: stepscope("ingest", str(trace), "--store", str(store)),
        needs_empty_store=True,
    ),
    Case(
        SHOW,
        lambda trace, store: stepscope(
            "show", "categories", str(trace), "--store", str(store), "--format", "json"
        ),
    ),
)


def peer_cases(raw_bytes: int) -> list[Case]:
    """The other programs that are installed and can hold a trace of this size in memory."""
    if raw_bytes > PEERS_UP_TO_BYTES:
        print("(peers left out: they hold five times the trace in memory)")
        return []
    peers = [Case("json.load", lambda trace, _: python(JSON_CODE, trace))]
    if importlib.util.find_spec("hta"):
        peers.append(Case("HTA", lambda trace, _: python(HTA_CODE, trace)))
    return peers


def run(command: list[str]) -> Cost:
    """Run a program to its end and return what it took."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if child.returncode != 0:
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
            sys.exit(f"{' '.join(command[1:5])} ... failed ({child.returncode}): {lines[-1]}")
        # Linux counts the peak in KiB, macOS in bytes.
        peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Cost(wall_s, usage.ru_utime + usage.ru_stime, peak_bytes, out.read().decode())


def best(runs: list[Cost]) -> Cost:
    """The quickest run, with the highest peak of all."""
    quickest = min(runs, key=lambda cost: cost.wall_s)
    return Cost(quickest.wall_s, quickest.cpu_s, max(cost.peak_bytes for cost in runs), quickest.output)


def measure(trace: Path, cases: list[Case], repeats: int, stores: Path) -> dict[str, Cost]:
    """Let the cases take turns and return the best run of each."""
    store = stores / trace.name.removesuffix(".pt.trace.json.gz")
    runs: dict[str, list[Cost]] = {case.label: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            if case.needs_empty_store:
                shutil.rmtree(store, ignore_errors=True)
            runs[case.label].append(run(case.command(trace, store)))
    return {label: best(costs) for label, costs in runs.items()}


def print_table(trace: Path, costs: dict[str, Cost]) -> None:
    """Print one row per program."""
    summary = traces.summary_of(trace)
    raw_bytes, events = summary.raw_bytes, sum(summary.events.values())
    factor = raw_bytes / trace.stat().st_size
    print(f"\n{raw_bytes / 1e9:.2f} GB of JSON, {events:,} events, {factor:.1f}x smaller as .gz")
    print(f"{'':<28}{'wall s':>9}{'CPU s':>9}{'MB/s':>9}{'peak MiB':>10}{'x decompr.':>12}")
    unit_s = costs[DECOMPRESSION].wall_s
    for label, cost in costs.items():
        rate = f"{raw_bytes / cost.wall_s / 1e6:.0f}" if label != SHOW else "-"
        print(
            f"{label:<28}{cost.wall_s:>9.2f}{cost.cpu_s:>9.2f}{rate:>9}"
            f"{cost.peak_bytes / MIB:>10.0f}{cost.wall_s / unit_s:>12.2f}"
        )


def check_counts(trace: Path, output: str) -> None:
    """Stop where stepscope counts other events than were written: a fast wrong reader is no reader."""
    rows = json.loads(output)["rows"]
    found = {f"{row['category'] or ''} {row['phase']}".strip(): int(row["events"]) for row in rows}
    wanted = traces.summary_of(trace).events
    wrong = sorted(kind for kind in found | wanted if found.get(kind) != wanted.get(kind))
    if wrong:
        sys.exit(f"stepscope miscounts {', '.join(wrong)}")


def budgets_of(small: dict[str, Cost], large: dict[str, Cost]) -> list[Budget]:
    """Hold the two sizes against what was promised."""
    added_s = large[INGEST].wall_s - small[INGEST].wall_s
    added_floor_s = large[DECOMPRESSION].wall_s - small[DECOMPRESSION].wall_s
    end_to_end = small[INGEST].wall_s / small[DECOMPRESSION].wall_s
    return [
        Budget("1 GB end to end / decompression", end_to_end, 2.0, "x"),
        Budget("added time 1 to 4 GB / decompression's", added_s / added_floor_s, 1.5, "x"),
        Budget("peak memory at 1 GB", small[INGEST].peak_bytes / MIB, 400, "MiB"),
        Budget("show categories at 1 GB", small[SHOW].wall_s, 1.0, "s"),
    ]


def compile_package() -> None:
    """Give the modules the bytecode that an installed package has; some set-ups would not keep any."""
    if (found := importlib.util.find_spec("stepscope")) and found.submodule_search_locations:
        for folder in found.submodule_search_locations:
            compileall.compile_dir(folder, quiet=2)


def print_budgets(budgets: list[Budget]) -> None:
    """Print each budget, what was measured, and whether it was kept."""
    print(f"\n{'budget':<42}{'measured':>10}{'limit':>8}")
    for budget in budgets:
        verdict = "PASS" if budget.kept else "MISS"
        print(f"{budget.label:<42}{budget.measured:>10.2f}{budget.limit:>8g} {budget.unit:<4} {verdict}")


@contextmanager
def store_folder(kept: Path | None) -> Iterator[Path]:
    """Give a folder for the stores: the one asked for, or one that goes away."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(dir=traces.cache_folder(), prefix="stores-") as folder:
        yield Path(folder)


def one_size(raw_bytes: int, repeats: int, stores: Path, *, peers: bool) -> dict[str, Cost]:
    """Measure one size, print its table, return the costs."""
    trace = traces.cached(traces.Recipe(raw_bytes))
    costs = measure(trace, list(OUR_CASES), repeats, stores)
    check_counts(trace, costs[SHOW].output)
    if peers:
        costs |= measure(trace, peer_cases(raw_bytes), 1, stores)
    print_table(trace, costs)
    return costs


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=SMALL_BYTES, help="size of the JSON text")
    parser.add_argument("--scale", action="store_true", help="measure 1 GB and 4 GB, check the budgets")
    parser.add_argument("--peers", action="store_true", help="measure other programs too; slow")
    parser.add_argument("--repeats", type=int, help="runs of each program, the best of which counts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the stores in this folder")
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} x {traces.cpu_name()}, load before: {os.getloadavg()[0]:.1f}")
    compile_package()
    with store_folder(options.keep) as stores:
        if not options.scale:
            repeats = options.repeats or (3 if options.size < LARGE_BYTES else 2)
            one_size(options.size, repeats, stores, peers=options.peers)
            return 0
        small = one_size(SMALL_BYTES, options.repeats or 3, stores, peers=options.peers)
        large = one_size(LARGE_BYTES, options.repeats or 2, stores, peers=False)
    budgets = budgets_of(small, large)
    print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
