"""Measure a run of many ranks: read by a pool of processes and by a cluster of Ray, and asked for again.

python benchmarks/ranks.py                      64 ranks against the budgets; exit code 3 on a miss
python benchmarks/ranks.py --ranks 64 256 1024  those numbers of ranks, one table each
python benchmarks/ranks.py --engines local      without Ray

The profiles are those of real ranks with shifted clocks, written anew for every number of ranks: of
`ranks/ddp_mi300_4` in $STEPSCOPE_SAMPLES or `../shared/data`, else of the two ranks in `tests/data`. Ray is
started on this machine for each of its runs. Each run is a process of its own, which begins without stores.
All engines must find the same, to the last digit, and the clocks that were planted.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ingest
import traces

MIB = 1 << 20
ROOT = Path(__file__).parent.parent
MOST_OFFSET_NS = 5_000_000_000
TABLES = ("clocks", "collectives", "run_steps", "rank_steps")
LATE_NS = 20_000
"""How far a fitted clock may be from the planted one, beside its own error: the clocks of the real ranks
differ by so much."""


# ---------------------------------------------------------------- profiles


def real_ranks() -> list[Path]:
    """The profiles that others are made of."""
    samples = Path(os.environ.get("STEPSCOPE_SAMPLES") or ROOT.parent / "shared" / "data")
    found = sorted((samples / "ranks" / "ddp_mi300_4").glob("rank*.json.gz"))
    return found or sorted((ROOT / "tests" / "data").glob("h200_ddp_gloo_rank*.json.gz"))


def offset_of(rank: int) -> int:
    """By how much the clock of a rank is planted to differ from that of rank 0: spread over ten seconds."""
    return (rank * 7_919_003_001) % (2 * MOST_OFFSET_NS) - MOST_OFFSET_NS if rank else 0


def write_ranks(folder: Path, ranks: int) -> None:
    """Writes a run of so many ranks: rank n is one of the real ones with another clock and a larger group."""
    everybody = list(range(ranks))
    templates = [template(path, everybody) for path in real_ranks()]
    width = len(str(ranks - 1))
    for rank in everybody:
        head, events = templates[rank % len(templates)]
        head["distributedInfo"]["rank"] = rank
        told = {**head, "baseTimeNanoseconds": head.get("baseTimeNanoseconds", 0) - offset_of(rank)}
        text = json.dumps(told).removesuffix("}") + f', "traceEvents": {events}}}'
        path = folder / f"rank{rank:0{width}}.json.gz"
        path.write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))


def template(path: Path, everybody: list[int]) -> tuple[dict[str, Any], str]:
    """The header of a profile, and its events as text, for a group of all ranks."""
    with gzip.open(path) as file:
        head = json.load(file)
    events = head.pop("traceEvents")
    head["baseTimeNanoseconds"] = head.get("baseTimeNanoseconds", 0) + 2 * MOST_OFFSET_NS
    head["distributedInfo"] |= {"world_size": len(everybody)}
    for group in head["distributedInfo"].get("pg_config", []):
        group |= {"pg_size": len(everybody), "ranks": everybody}
    for event in events:
        told = event.get("args", {})
        if "Process Group Ranks" in told:
            told |= {"Process Group Ranks": json.dumps(everybody), "Group size": len(everybody)}
    return head, json.dumps(events)


# ---------------------------------------------------------------- one run, in a process of its own


class Watch:
    """The most memory that any worker below this process had, and the processor time of all of them."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ticks: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def cpu_s(self) -> float:
        """Processor time of all workers, as last seen."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            parents = dict(self._processes())
            for pid in parents:
                above, command = pid, b""
                while above in parents and above != os.getpid():
                    above = parents[above]
                if above == os.getpid() and pid != above:
                    command = read(f"/proc/{pid}/cmdline")
                if b"stepscope.cluster" in command or command.startswith(b"ray::"):
                    told = read(f"/proc/{pid}/status").partition(b"VmHWM:")[2].split()
                    self.peak_bytes = max(self.peak_bytes, int(told[0]) * 1024 if told else 0)
                    spent = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
                    if spent:
                        self._ticks[pid] = int(spent[11]) + int(spent[12])

    def _processes(self) -> Iterator[tuple[int, int]]:
        for place in Path("/proc").glob("[0-9]*"):
            if told := read(f"{place}/stat").rpartition(b")")[2].split():
                yield int(place.name), int(told[1])


def read(path: str) -> bytes:
    """What a file of the system says; nothing if its process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def one_run(engine: str, folder: Path, store: Path) -> dict[str, Any]:
    """Opens a run, and tells what that took and found."""
    from stepscope.cluster.opening import open_run

    with Watch() as workers:
        start = time.perf_counter()
        run = open_run(str(folder), engine=engine, store=store)  # type: ignore[arg-type]
        read_s = time.perf_counter() - start
    start = time.perf_counter()
    tables = {name: run.table(name) for name in TABLES}
    tables_s = time.perf_counter() - start
    start = time.perf_counter()
    again = open_run(str(folder), engine=engine, store=store)  # type: ignore[arg-type]
    for name in TABLES:
        again.table(name)
    again_s = time.perf_counter() - start
    digest = hashlib.sha256()
    for name in ("steps", "calls", "exposed", "pieces", "work"):
        digest.update(repr(run.stacked(name).to_pylist()).encode())
    for table in tables.values():
        digest.update(repr(table.records()).encode())
    off = [
        max(0, abs(one.offset_ns - offset_of(one.rank)) - one.error_ns)
        for one in tables["clocks"]
        if one.offset_ns is not None and one.error_ns is not None
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "read_s": read_s,
        "tables_s": tables_s,
        "again_s": again_s,
        "head_bytes": peak,
        "worker_bytes": workers.peak_bytes,
        "cpu_s": workers.cpu_s,
        "ranks": len(run.ranks),
        "failed": [one.reason for one in run.failed],
        "aligned": len(off),
        "off_ns": max(off, default=0),
        "digest": digest.hexdigest(),
    }


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Alone:
    """What one rank takes in one process that does nothing else."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What one engine took for one number of ranks."""

    engine: str
    ranks: int
    told: dict[str, Any]
    alone: Alone
    cores: int

    @property
    def ratio(self) -> float:
        """Its time against that of one rank alone, times ranks, by processors: nobody reaches 1."""
        return float(self.told["read_s"]) * self.cores / (self.alone.wall_s * self.ranks)

    @property
    def work(self) -> float:
        """Its processor time against that of so many ranks alone: other programs do not change it."""
        return float(self.told["cpu_s"]) / (self.alone.cpu_s * self.ranks)

    @property
    def head_per_rank(self) -> float:
        """Memory of the head for each rank, beside what it takes without any."""
        return max(0.0, self.told["head_bytes"] - base_bytes()) / self.ranks


def base_bytes() -> int:
    """What a process takes that has imported everything and opened no run."""
    code = (
        "import resource, pyarrow.compute, duckdb, stepscope.cluster.opening, stepscope.runs.summarizing\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(told.stdout) * (1 if sys.platform == "darwin" else 1024)


def alone(folder: Path, store: Path, tries: int = 5) -> Alone:
    """The median of some ranks."""
    from stepscope.cluster.tasks import RankTask, done
    from stepscope.runs.finding import find_run

    found: list[tuple[float, float]] = []
    for number, record in enumerate(find_run([str(folder)]).ranks[: tries + 1]):
        start = time.perf_counter(), time.process_time()
        done(RankTask(record, str(store / str(number))))
        found.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    # The first one imports modules.
    return Alone(*(sorted(times)[len(times) // 2] for times in zip(*found[1:], strict=True)))


def measure(ranks: int, engines: list[str], place: Path) -> list[Measured]:
    """Lets every engine open the same run."""
    from stepscope.cluster.local import cores

    folder = place / f"run{ranks}"
    folder.mkdir()
    write_ranks(folder, ranks)
    one_rank = alone(folder, place / f"alone{ranks}")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"\n{ranks} ranks, {size / 1e6:.0f} MB; one rank alone takes {one_rank.wall_s:.2f} s, "
        f"{one_rank.cpu_s:.2f} s of CPU"
    )
    print(
        f"{'':<8}{'read s':>8}{'x ideal':>9}{'CPU s':>8}{'x work':>8}{'tables s':>10}{'again s':>9}"
        f"{'head MiB':>10}{'worker MiB':>12}"
    )
    found = []
    for engine in engines:
        store = place / f"store-{engine}"
        command = [sys.executable, __file__, "--one", engine, str(folder), str(store)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if ended.returncode:
            sys.exit(f"{engine} failed: {ended.stderr}")
        if ended.stderr:
            print(ended.stderr, file=sys.stderr)
        told = json.loads(ended.stdout)
        one = Measured(engine, ranks, told, one_rank, cores())
        found.append(one)
        print(
            f"{engine:<8}{told['read_s']:>8.1f}{one.ratio:>9.2f}{told['cpu_s']:>8.1f}{one.work:>8.2f}"
            f"{told['tables_s']:>10.2f}{told['again_s']:>9.2f}"
            f"{told['head_bytes'] / MIB:>10.0f}{told['worker_bytes'] / MIB:>12.0f}"
        )
        if told["ranks"] != ranks or told["failed"]:
            sys.exit(f"{engine} read {told['ranks']} ranks; {told['failed'][:3]}")
        shutil.rmtree(store)
    shutil.rmtree(folder)
    return found


def budgets_of(found: list[Measured]) -> list[ingest.Budget]:
    """Holds each run against what was promised."""
    budgets = []
    for one in found:
        label = f"{one.engine}, {one.ranks} ranks"
        # Ray starts a cluster first, of some seconds.
        budgets += [
            ingest.Budget(f"{label}: time / ideal", one.ratio, 1.5 if one.engine == "local" else 2.0, "x"),
            ingest.Budget(f"{label}: CPU time / ranks alone", one.work, 1.5, "x"),
            ingest.Budget(f"{label}: head per rank", one.head_per_rank / MIB, 4, "MiB"),
            ingest.Budget(f"{label}: a worker", one.told["worker_bytes"] / MIB, 1024, "MiB"),
            ingest.Budget(f"{label}: clocks off by", one.told["off_ns"] / 1e3, LATE_NS / 1e3, "µs"),
            ingest.Budget(f"{label}: ranks not aligned", one.ranks - one.told["aligned"], 0, ""),
        ]
    return budgets


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=traces.cache_folder(), prefix="ranks-") as folder:
        yield Path(folder)


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[64], help="how many ranks")
    parser.add_argument("--engines", nargs="+", default=["local", "ray"], help="what reads them")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "FOLDER", "STORE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        engine, folder, store = options.one
        print(json.dumps(one_run(engine, Path(folder), Path(store))))
        return 0
    print(f"{os.cpu_count()} x {traces.cpu_name()}, load before: {os.getloadavg()[0]:.1f}")
    print(f"made of {', '.join(path.name for path in real_ranks())}")
    found: list[Measured] = []
    with _scratch() as place:
        for ranks in options.ranks:
            some = measure(ranks, options.engines, place)
            found += some
            if len({one.told["digest"] for one in some}) > 1:
                print("the engines found different things")
                return 3
            print("all engines found the same" if len(some) > 1 else "")
    budgets = budgets_of(found)
    ingest.print_budgets(budgets)
    return 0 if all(budget.kept for budget in budgets) else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
