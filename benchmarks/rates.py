"""How fast a kind of profile is read, beside a Kineto trace of the same size.

The two take turns, each run is a whole process from start to exit, and the run that took least of the
processor counts: a machine is rarely quiet, and time of the processor does not count who waits for it. Kinds
of profile hold an event in very different numbers of bytes, so both rates are printed; the one by bytes
decides. It is printed by wall time as well, which says something on a quiet machine alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import traces
from ingest import MIB, Cost, run, stepscope

__all__ = ["LEAST_SHARE", "Measured", "compared", "measured"]

LEAST_SHARE = 1 / 3
"""Of the rate at which Kineto's JSON is read, in bytes a second."""
MOST_MEMORY = 512 * MIB
"""Of a process that reads a profile, whatever its size."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile, how many events it has, and what reading it took."""

    size: int
    events: int
    cost: Cost

    @property
    def bytes_a_second(self) -> float:
        """By time of the processor."""
        return self.size / self.cost.cpu_s

    @property
    def events_a_second(self) -> float:
        """By time of the processor."""
        return self.events / self.cost.cpu_s


def measured(profiles: dict[str, tuple[Path, int]], repeats: int) -> dict[str, Measured]:
    """Reads each profile, given with the number of its events, so many times, in turns."""
    costs: dict[str, list[Cost]] = {name: [] for name in profiles}
    with tempfile.TemporaryDirectory(dir=traces.cache_folder(), prefix="stores-") as folder:
        for _ in range(repeats):
            for name, (path, _) in profiles.items():
                store = Path(folder) / "store"
                costs[name].append(run(stepscope("ingest", str(path), "--store", str(store))))
                shutil.rmtree(store)
    return {
        name: Measured(path.stat().st_size, events, _least(costs[name]))
        for name, (path, events) in profiles.items()
    }


def _least(runs: list[Cost]) -> Cost:
    best = min(runs, key=lambda cost: cost.cpu_s)
    wall_s = min(cost.wall_s for cost in runs)
    return Cost(wall_s, best.cpu_s, max(cost.peak_bytes for cost in runs), best.output)


def compared(found: dict[str, Measured], of: str = "Kineto JSON") -> int:
    """Prints a line for each and the shares of the rate of one of them; 3 if a budget is broken."""
    print(f"{os.cpu_count()} x {traces.cpu_name()}, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'':<24}{'MB':>7}{'events':>12}{'wall s':>8}{'CPU s':>8}{'MB/s':>8}{'events/s':>12}{'peak MiB':>10}"
    )
    for name, one in found.items():
        print(
            f"{name:<24}{one.size / 1e6:>7,.0f}{one.events:>12,}{one.cost.wall_s:>8.2f}{one.cost.cpu_s:>8.2f}"
            f"{one.bytes_a_second / 1e6:>8.0f}{one.events_a_second:>12,.0f}{one.cost.peak_bytes / MIB:>10.0f}"
        )
    kept = True
    for name, one in found.items():
        if name == of:
            continue
        by_bytes = one.bytes_a_second / found[of].bytes_a_second
        by_wall = one.size / one.cost.wall_s / (found[of].size / found[of].cost.wall_s)
        by_events = one.events_a_second / found[of].events_a_second
        fine = by_bytes >= LEAST_SHARE and one.cost.peak_bytes <= MOST_MEMORY
        kept &= fine
        print(
            f"{name}: {by_bytes:.2f} of the rate of {of} by bytes and CPU (at least {LEAST_SHARE:.2f}), "
            f"{by_wall:.2f} by bytes and wall time, {by_events:.2f} by events; {'PASS' if fine else 'MISS'}"
        )
    return 0 if kept else 3
