"""The pool of processes: every task is answered, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.cluster.ranks import GLOO, Stalled, alive, children, drawn, forget_children, gone, task

from stepscope import memory
from stepscope.analyses.kernels import Kernel
from stepscope.children import command
from stepscope.cluster.engine import Outcome
from stepscope.cluster.local import HereEngine, LocalEngine, cores
from stepscope.cluster.tasks import RankTask, done, read_table


@pytest.fixture(autouse=True)
def _no_others() -> None:
    forget_children()


def rows(outcome: Outcome) -> list[dict[str, object]]:
    assert outcome.payload is not None, outcome.error
    found: list[dict[str, object]] = read_table(outcome.payload, Kernel).records()
    return found


@pytest.mark.slow
def test_a_pool_gives_what_this_process_gives(tmp_path: Path) -> None:
    tasks = [task(rank, path, tmp_path / "pool", "ops") for rank, path in enumerate(GLOO)]
    here = [task(rank, path, tmp_path / "here", "ops") for rank, path in enumerate(GLOO)]
    told: list[float | None] = []
    found = {
        one.task.rank: one.payload
        for one in LocalEngine(2).map(tasks, lambda doing, share, n_bytes, events: told.append(share))
    }
    assert found == {one.task.rank: one.payload for one in HereEngine().map(here)}
    assert found == {one.rank: done(one) for one in here}
    assert told == [0.5, 1.0]
    assert not children()


@pytest.mark.slow
def test_one_bad_profile_costs_no_other(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("<html>")
    tasks = [task(rank, drawn(tmp_path, rank), tmp_path / "store") for rank in range(3)]
    tasks += [task(3, bad, tmp_path / "store"), task(4, tmp_path / "absent.json", tmp_path / "store")]
    for engine in (HereEngine(), LocalEngine(2)):
        found = {one.task.rank: one for one in engine.map(tasks)}
        assert sorted(found) == [0, 1, 2, 3, 4]
        for rank in range(3):
            assert [row["calls"] for row in rows(found[rank])] == [rank + 1]
        assert found[3].payload is None
        assert "is not a trace" in found[3].error
        assert found[4].error == f"there is no file {tmp_path / 'absent.json'}"
        assert not found[4].detail


def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    broken = RankTask(None, str(tmp_path / "store"))  # type: ignore[arg-type]
    (found,) = HereEngine().map([broken])
    assert found.payload is None
    assert "AttributeError" in found.error
    assert "Traceback" in found.detail


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the reader of a pipe")
def test_a_worker_killed_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    stalled = Stalled(tmp_path / "stalled.json", drawn(tmp_path, 9))
    tasks = [task(rank, drawn(tmp_path, rank), tmp_path / "store") for rank in range(4)]
    tasks.insert(1, task(9, stalled.path, tmp_path / "store"))
    killed: list[int] = []

    def kill() -> None:
        with stalled.begun() as pid:
            stalled.let_go()
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = {one.task.rank: one for one in LocalEngine(2).map(tasks)}
    killer.join(10)
    assert len(killed) == 1
    assert {rank: rows(one)[0]["calls"] for rank, one in found.items()} == {0: 1, 1: 2, 2: 3, 3: 4, 9: 10}
    assert not children()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the reader of a pipe")
def test_a_rank_that_kills_every_worker_is_told_and_the_rest_stands(tmp_path: Path) -> None:
    stalled = Stalled(tmp_path / "stalled.json", drawn(tmp_path, 9))
    tasks = [task(9, stalled.path, tmp_path / "store"), task(0, drawn(tmp_path, 0), tmp_path / "store")]
    killed: list[int] = []

    def kill() -> None:
        for _ in range(3):
            with stalled.begun() as pid:
                os.kill(pid, signal.SIGKILL)
                assert gone({pid})
                killed.append(pid)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = {one.task.rank: one for one in LocalEngine(2).map(tasks)}
    killer.join(10)
    assert len(set(killed)) == 3
    assert rows(found[0])[0]["calls"] == 1
    assert found[9].payload is None
    assert found[9].error == "its worker was killed by signal 9"


@pytest.mark.slow
def test_who_stops_asking_ends_the_workers(tmp_path: Path) -> None:
    tasks = [task(rank, drawn(tmp_path, rank), tmp_path / "store") for rank in range(4)]
    answers = LocalEngine(2).map(tasks)
    next(answers)
    workers = children()
    assert workers
    answers.close()  # type: ignore[attr-defined]  # a generator
    assert gone(workers)


HEAD = """
    import sys
    from pathlib import Path
    from tests.cluster.ranks import task
    from stepscope import interrupts
    from stepscope.cluster.local import LocalEngine
    interrupts.watch()
    stalled, folder = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        for one in LocalEngine(2).map([task(rank, stalled, folder) for rank in range(2)]):
            print(one)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for the reader of a pipe")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_head(tmp_path: Path, number: int) -> None:
    stalled = Stalled(tmp_path / "stalled.json", drawn(tmp_path, 9))
    command = [sys.executable, "-c", textwrap.dedent(HEAD), str(stalled.path), str(tmp_path / "store")]
    head = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with stalled.begun() as pid:
        assert alive(pid)
        children = Path(f"/proc/{head.pid}/task/{head.pid}/children")
        workers = set(map(int, children.read_text().split()))
        assert pid in workers
        began = time.monotonic()
        head.send_signal(number)
        said, complained = head.communicate(timeout=20)
        assert gone(workers)
    assert time.monotonic() - began < 10
    assert head.returncode == (-number if number == signal.SIGKILL else 130)
    assert (said, complained) == (b"", b"")
    assert [path.name for path in (tmp_path / "store").glob(".*")] == []


def test_a_worker_whose_head_is_gone_says_nothing() -> None:
    for _ in range(3):
        ours, theirs = socket.socketpair()
        ours.close()
        words = command("stepscope.cluster.worker", theirs.fileno(), "100000000")
        done = subprocess.run(words, pass_fds=[theirs.fileno()], capture_output=True, timeout=60, check=False)
        theirs.close()
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_memory_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 1_000_000_000
    monkeypatch.setattr(memory, "available", lambda: 4 * gigabyte)
    assert memory.workers_that_fit(2) == 2
    assert memory.workers_that_fit(64) == 8
    assert memory.share_of_workers(2) == 600_000_000
    assert memory.share_of_workers(8) == 100_000_000
    assert all(memory.share_of_workers(many) + 400_000_000 <= 4 * gigabyte / many for many in range(1, 9))
    monkeypatch.setattr(memory, "available", lambda: gigabyte // 10)
    assert memory.workers_that_fit(64) == 1
    monkeypatch.setattr(memory, "available", lambda: None)
    assert (memory.workers_that_fit(64), memory.share_of_workers(64)) == (64, 600_000_000)


def test_this_machine_has_processors_and_memory() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    here = memory.available()
    assert here is None or here > 0
