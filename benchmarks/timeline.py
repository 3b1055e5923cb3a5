"""Measure the timeline of the window: how long it takes to make against reading the profile, and its tiles.

python benchmarks/timeline.py                 1 GB against the budgets; exit code 3 on a miss
python benchmarks/timeline.py --size 20GB     another size, against the same budgets

The timeline is made in a process of its own that has the trace open already, as a window has.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path

import ingest
import traces

LARGE_BYTES = 1_000_000_000
MIB = 1 << 20
TILES = 2000
MADE = "--made"  # the child that makes one


def make(folder: Path) -> None:
    """Make the timeline of a store, ask for tiles of all tracks and levels, and print what it took."""
    from stepscope.store.timeline import Timeline, begin_timeline, tile_ns
    from stepscope.store.trace import Trace

    trace = Trace(folder)
    trace.reading(None).rows("SELECT 1 AS one FROM stored.threads")
    begun = time.perf_counter()
    timeline: Timeline = begin_timeline(trace)
    while not any(track.done for track in timeline.tracks()) and timeline.made < 1:
        time.sleep(0.005)
    first_s = time.perf_counter() - begun
    made_s = time.perf_counter() - begun if timeline.wait() else 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tracks, chance, took, sizes = timeline.tracks(), random.Random(1), [], []
    for _ in range(TILES):
        track, level = chance.choice(tracks), chance.randrange(timeline.levels)
        at = chance.randint(track.first_ns, track.last_ns) // tile_ns(level)
        start = time.perf_counter()
        sizes.append(len(timeline.tile(track.id, level, at)))
        took.append(time.perf_counter() - start)
    start = time.perf_counter()
    timeline.find([2**31 - 1], timeline.span_ns[0] - 1)  # a name that no event has
    search_s = time.perf_counter() - start
    again = time.perf_counter()
    Timeline(Trace(folder)).wait()
    figures = {
        "first_s": first_s,
        "made_s": made_s,
        "opened_s": time.perf_counter() - again,
        "search_s": search_s,
        "p50_ms": sorted(took)[TILES // 2] * 1e3,
        "p95_ms": sorted(took)[TILES * 95 // 100] * 1e3,
        "most_ms": max(took) * 1e3,
        "largest_bytes": max(sizes),
        "peak_bytes": peak,
        "events": sum(track.events for track in tracks),
        "boxes_bytes": (folder / "timeline.boxes").stat().st_size,
    }
    print(json.dumps(figures))


def measured(raw_bytes: int, repeats: int, stores: Path) -> list[ingest.Budget]:
    """Reading and making take turns, and the best of each counts."""
    trace = traces.cached(traces.Recipe(raw_bytes))
    reading, found = [], []
    for _ in range(repeats):
        shutil.rmtree(stores, ignore_errors=True)
        reading.append(ingest.run(ingest.stepscope("ingest", str(trace), "--store", str(stores))))
        (folder,) = stores.iterdir()
        made = ingest.run([sys.executable, __file__, MADE, str(folder)])
        found.append(json.loads(made.output))
    ingest_s = ingest.best(reading).wall_s
    best = min(found, key=lambda one: one["made_s"])
    print(f"\n{raw_bytes / 1e9:.2f} GB of JSON, {best['events']:,} boxes: ingest {ingest_s:.2f} s")
    print(f"timeline made in {best['made_s']:.2f} s, first track after {best['first_s']:.2f} s, ", end="")
    print(
        f"{best['boxes_bytes'] / best['events']:.0f} bytes an event, opened again in {best['opened_s']:.2f} s"
    )
    print(f"tiles: median {best['p50_ms']:.2f} ms, p95 {best['p95_ms']:.2f} ms, ", end="")
    print(f"slowest {best['most_ms']:.1f} ms, ", end="")
    print(f"largest {best['largest_bytes'] / 1e3:.0f} kB; search through all {best['search_s'] * 1e3:.0f} ms")
    return [
        ingest.Budget("timeline made, against ingest", best["made_s"] / ingest_s, 0.3, "x"),
        ingest.Budget("its first track", min(one["first_s"] for one in found), 1.0, "s"),
        ingest.Budget("a tile, p95", min(one["p95_ms"] for one in found), 50, "ms"),
        ingest.Budget("peak memory", max(one["peak_bytes"] for one in found) / MIB, 1024, "MiB"),
    ]


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    if arguments[:1] == [MADE]:
        make(Path(arguments[1]))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=LARGE_BYTES, help="size of the JSON text")
    parser.add_argument("--repeats", type=int, default=2, help="runs, the best of which counts")
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} x {traces.cpu_name()}, load before: {os.getloadavg()[0]:.1f}")
    ingest.compile_package()
    with ingest.store_folder(None) as stores:
        budgets = measured(options.size, options.repeats, stores / "timeline")
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
