"""Measure how fast Perfetto traces are read and written, beside the same events as JSON.

python benchmarks/pftrace.py                     a trace of 1 GB of JSON, and the .pftrace of the same events
python benchmarks/pftrace.py --size 200MB

The two hold the same events, the .pftrace in about a quarter of the bytes. Exit code 3 if it takes more than
three times as long to read, or much more memory. Every figure is a whole process; the best of several runs
counts, and the readers take turns.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import traces
from ingest import MIB, Cost, best, run, stepscope

LEAST_RATE = 1 / 3
"""Of the rate at which JSON is read, in events a second."""
MOST_MEMORY = 256 << 20
"""More than reading the JSON takes, whatever the size: slices that wait for their end are kept in bounds."""

WRITE = """
import sys
import stepscope
from stepscope.exports.pftrace import pftrace
from stepscope.store.export import Selection
pftrace(stepscope.open(sys.argv[1]), sys.argv[2], Selection())
"""
COUNT = """
import sys
import stepscope
trace = stepscope.open(sys.argv[1], store=sys.argv[2])
for table in ("device_work", "launches", "ops", "python_frames"):
    print(trace.rows(f"SELECT count(*) AS n, sum(dur_ns)::BIGINT AS ns FROM {table}"))
"""


def main() -> int:
    """Write both, read both, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1GB", help="of the JSON")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return compared(Path(folder), chosen.size, chosen.repeats)


def compared(folder: Path, size: str, repeats: int) -> int:
    """Measure in a folder; 3 where a budget is broken."""
    plain = traces.cached(traces.Recipe(traces.parse_size(size), plain=True))
    first, packed = folder / "first", folder / "same.pftrace"
    run(stepscope("ingest", str(plain), "--store", str(first)))
    (store,) = first.iterdir()
    wrote = run([sys.executable, "-c", WRITE, str(store), str(packed)])
    costs: dict[Path, list[Cost]] = {plain: [], packed: []}
    for _ in range(repeats):
        for trace, runs in costs.items():
            shutil.rmtree(folder / "again", ignore_errors=True)
            runs.append(run(stepscope("ingest", str(trace), "--store", str(folder / "again"))))
    said = {
        trace: run([sys.executable, "-c", COUNT, str(trace), str(folder / "again")]).output for trace in costs
    }
    if said[plain] != said[packed]:
        sys.exit(f"the two differ:\n{said[plain]}{said[packed]}")
    json_cost, packed_cost = best(costs[plain]), best(costs[packed])
    print(f"{'':<24}{'MB':>9}{'wall s':>9}{'MB/s':>9}{'peak MiB':>10}")
    rows = [
        ("JSON read", plain, json_cost),
        (".pftrace read", packed, packed_cost),
        (".pftrace written", packed, wrote),
    ]
    for label, trace, cost in rows:
        read = trace.stat().st_size / 1e6
        peak = cost.peak_bytes / MIB
        print(f"{label:<24}{read:>9.0f}{cost.wall_s:>9.2f}{read / cost.wall_s:>9.0f}{peak:>10.0f}")
    rate = json_cost.wall_s / packed_cost.wall_s
    memory = packed_cost.peak_bytes - json_cost.peak_bytes
    print(f"events a second: {rate:.2f} of JSON's (at least {LEAST_RATE:.2f})")
    print(f"memory: {memory / MIB:.0f} MiB more (at most {MOST_MEMORY / MIB:.0f})")
    return 0 if rate >= LEAST_RATE and memory <= MOST_MEMORY else 3


if __name__ == "__main__":
    sys.exit(main())
