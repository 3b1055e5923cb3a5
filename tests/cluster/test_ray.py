"""The engine over Ray, on a real cluster of this machine."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.ranks import Stalled, drawn, gone, run_of, task
from tests.conftest import TORCH_PYTHON

from stepscope import registry
from stepscope.analyses.kernels import Kernel
from stepscope.cluster.local import HereEngine, LocalEngine
from stepscope.cluster.opening import Where, all_ranks, open_run
from stepscope.cluster.ray import RayEngine
from stepscope.cluster.tasks import read_table
from stepscope.errors import StepscopeError
from stepscope.runs.summary import SUMMARY_TABLES

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and files open when it ends.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster on this machine, for all tests of this file."""
    if sys.version_info[:2] != TORCH_PYTHON:
        pytest.skip("Ray is installed on Python {}.{} only".format(*TORCH_PYTHON))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module("ray")
        module.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield module
    module.shutdown()


def calls(payload: bytes | None) -> int:
    assert payload is not None
    found: int = read_table(payload, Kernel).records()[0]["calls"]
    return found


def test_a_cluster_gives_what_this_process_and_the_pool_give(ray: Any, tmp_path: Path) -> None:
    tasks = [task(rank, drawn(tmp_path, rank), tmp_path / "store") for rank in range(12)]
    told: list[float | None] = []
    found = {
        one.task.rank: one.payload
        for one in RayEngine().map(tasks, lambda doing, share, n_bytes, events: told.append(share))
    }
    assert found == {one.task.rank: one.payload for one in HereEngine().map(tasks)}
    assert found == {one.task.rank: one.payload for one in LocalEngine(2).map(tasks)}
    assert [calls(found[rank]) for rank in range(12)] == list(range(1, 13))
    assert told == [(number + 1) / 12 for number in range(12)]
    assert ray.is_initialized()  # what the program had, stays


@pytest.mark.parametrize("ranks", [4, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_a_run_is_the_same_by_every_engine(ray: Any, ranks: int, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", ranks)
    runs = [
        open_run(str(folder), store=tmp_path / "here", workers=1),
        open_run(str(folder), store=tmp_path / "pool", workers=2),
        open_run(str(folder), store=tmp_path / "ray", engine="ray"),
    ]
    first, *others = runs
    assert first.ranks == tuple(range(ranks))
    assert [one.offset_ns for one in first.table("clocks")][1:] != [0] * (ranks - 1)
    for other in others:
        for name in SUMMARY_TABLES:
            assert other.stacked(name).equals(first.stacked(name))
        for name, _ in registry.names("runs.analyses"):
            assert other.table(name).records() == first.table(name).records()
            assert other.table(name).notes == first.table(name).notes
    tables = [
        all_ranks(str(folder), "ops", {"by": "shape"}, Where(engine, store=tmp_path / engine))
        for engine in ("local", "ray")
    ]
    assert tables[0].records() == tables[1].records()
    assert tables[0].notes == tables[1].notes


def test_one_bad_profile_costs_no_other(ray: Any, tmp_path: Path) -> None:
    tasks = [
        task(0, drawn(tmp_path, 0), tmp_path / "store"),
        task(1, tmp_path / "no.json", tmp_path / "store"),
    ]
    found = {one.task.rank: one for one in RayEngine().map(tasks)}
    assert calls(found[0].payload) == 1
    assert re.fullmatch(rf"there is no file {tmp_path}/no.json \(on .+\)", found[1].error)
    assert found[1].payload is None


def test_a_worker_killed_in_the_middle_loses_nothing(ray: Any, tmp_path: Path) -> None:
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
    found = {one.task.rank: one for one in RayEngine().map(tasks)}
    killer.join(10)
    assert len(killed) == 1
    assert {rank: calls(one.payload) for rank, one in found.items()} == {0: 1, 1: 2, 2: 3, 3: 4, 9: 10}


def test_a_rank_that_kills_every_worker_is_told_and_the_rest_stands(ray: Any, tmp_path: Path) -> None:
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
    found = {one.task.rank: one for one in RayEngine().map(tasks)}
    killer.join(10)
    assert len(set(killed)) == 3
    assert calls(found[0].payload) == 1
    assert found[9].payload is None
    assert found[9].error == "its worker was killed or crashed"


HEAD = """
    import sys
    from pathlib import Path
    from tests.cluster.ranks import task
    from stepscope.cluster.ray import RayEngine
    folder = Path(sys.argv[1])
    tasks = [task(rank, folder / f"rank{rank}.json", folder / "store") for rank in range(4)]
    for one in RayEngine(workers=2).map(tasks):
        assert (one.payload is None) == (one.task.rank == 3), one.error
"""


def test_a_cluster_of_our_own_is_quiet_and_goes(tmp_path: Path) -> None:
    if sys.version_info[:2] != TORCH_PYTHON:
        pytest.skip("Ray is installed on Python {}.{} only".format(*TORCH_PYTHON))
    for rank in range(3):
        drawn(tmp_path, rank)
    before = daemons()
    command = [sys.executable, "-c", textwrap.dedent(HEAD), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert gone(daemons() - before)


INTERRUPTED = """
    import sys
    from pathlib import Path
    from tests.cluster.ranks import task
    from stepscope import interrupts
    from stepscope.cluster.ray import RayEngine
    interrupts.watch()
    try:
        list(RayEngine(workers=2).map([task(0, Path(sys.argv[1]), Path(sys.argv[2]))]))
    except KeyboardInterrupt:
        sys.exit(interrupts.exit_code())
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)],  # all signals: test_local.py
)
def test_a_signal_ends_a_cluster_of_our_own(tmp_path: Path, number: int) -> None:
    if sys.version_info[:2] != TORCH_PYTHON:
        pytest.skip("Ray is installed on Python {}.{} only".format(*TORCH_PYTHON))
    stalled = Stalled(tmp_path / "stalled.json", drawn(tmp_path, 9))
    before = daemons()
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(stalled.path), str(tmp_path / "store")]
    head = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with stalled.begun() as pid:
        head.send_signal(number)
        said, complained = head.communicate(timeout=60)
        assert gone({pid, *(daemons() - before)})
    assert (head.returncode, said, complained) == (128 + number, b"", b"")


def daemons() -> set[int]:
    """The processes of clusters on this machine."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"raylet" in place.read_bytes() or b"gcs_server" in place.read_bytes():
                found.add(int(place.parts[2]))
        except OSError:
            continue
    return found


def test_a_cluster_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info[:2] != TORCH_PYTHON:
        pytest.skip("Ray is installed on Python {}.{} only".format(*TORCH_PYTHON))
    code = "import sys; from tests.cluster.test_ray import ask_nobody; ask_nobody(sys.argv[1])"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.stdout == "no cluster of Ray could be reached at 127.0.0.1:1\n", ended.stderr


def ask_nobody(folder: str) -> None:
    """Says what is said of a cluster that is not there; in a process of its own, which has no cluster."""
    try:
        list(RayEngine("127.0.0.1:1").map([task(0, drawn(Path(folder), 0), Path(folder))]))
    except StepscopeError as error:
        sys.stdout.write(error.message.partition(": ")[0] + "\n")
