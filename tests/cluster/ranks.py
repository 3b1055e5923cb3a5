"""Tasks for engines: real and drawn profiles, and one that a worker is at until the test lets it go on."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drawing import Drawing

from stepscope.cluster.tasks import RankTask
from stepscope.runs import Pass, RankRecord

DATA = Path(__file__).parent.parent / "data"
GLOO = tuple(DATA / f"h200_ddp_gloo_rank{rank}.pt.trace.json.gz" for rank in (0, 1))
PATIENCE_S = 60


def record(rank: int, path: Path) -> RankRecord:
    return RankRecord(rank, None, (Pass("light", path),), None)


def task(rank: int, path: Path, store: Path, table: str = "kernels") -> RankTask:
    return RankTask(record(rank, path), str(store), table)


def drawn(folder: Path, rank: int) -> Path:
    """A profile with as many kernels as its rank says, and one."""
    drawing = Drawing().mark(1, 0, 1000)
    for number in range(rank + 1):
        drawing.launch("cudaLaunchKernel", 10 * number, 1, corr=number).kernel(
            "gemm", 10 * number + 2, 3, corr=number
        )
    return drawing.write(folder / f"rank{rank}.json")


def run_of(folder: Path, ranks: int) -> Path:
    """A run of so many ranks: two real ones again and again, each with a clock of its own."""
    folder.mkdir()
    for rank in range(ranks):
        with gzip.open(GLOO[rank % 2]) as file:
            profile = json.load(file)
        profile["baseTimeNanoseconds"] += rank * 1_000_003
        told = profile["distributedInfo"]
        told |= {"rank": rank, "world_size": ranks}
        told["pg_config"][0] |= {"pg_size": ranks, "ranks": list(range(ranks))}
        (folder / f"rank{rank}.json").write_text(json.dumps(profile))
    return folder


class Stalled:
    """A profile that comes through a pipe and stops in the middle."""

    def __init__(self, path: Path, whole: Path) -> None:
        self.path = path
        self._whole = whole
        os.mkfifo(path)

    @contextmanager
    def begun(self) -> Iterator[int]:
        """Waits until somebody reads it, and tells who."""
        # It stays open: the next reader may be there before this one is gone, and is not to see an end.
        pipe = os.open(self.path, os.O_WRONLY)
        os.write(pipe, self._whole.read_bytes()[:100])
        yield self._reader()

    def _reader(self) -> int:
        for _ in range(PATIENCE_S * 20):
            for place in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if place.resolve() == self.path and (pid := int(place.parts[2])) != os.getpid():
                        return pid
                except OSError:
                    continue
            time.sleep(0.05)
        raise AssertionError("nobody reads the pipe")

    def let_go(self) -> None:
        """From now on it is a plain file."""
        aside = self.path.with_name("whole")
        shutil.copy(self._whole, aside)
        aside.replace(self.path)


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: set[int]) -> bool:
    """Whether processes are gone, or go within seconds."""
    for _ in range(100):
        if not any(map(alive, pids)):
            return True
        time.sleep(0.05)
    return False


_EARLIER: set[int] = set()


def children() -> set[int]:
    """The processes that this one started since `forget_children` was called."""
    found = set()
    for place in Path("/proc/self/task").glob("*/children"):
        found |= set(map(int, place.read_text().split()))
    return found - _EARLIER


def forget_children() -> None:
    """Libraries that other tests used may have left a process of their own, which is none of ours."""
    _EARLIER.update(children())
