"""The same over Ray: names and paths go to its nodes, bytes come back. The only module that imports it."""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from stepscope import interrupts
from stepscope.cluster.engine import ATTEMPTS, DOING, Outcome
from stepscope.cluster.worker import read_answer
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.cluster.tasks import RankTask
    from stepscope.streams import Progress

__all__ = ["RayEngine"]

_TASK_BYTES = 1 << 30
"""What a rank may take on a node, so that no more are done there than fit."""
_KNOCK_S = 10.0
_AHEAD = 2
"""Tasks in flight for each processor of the cluster: what is done waits in Ray's memory to be fetched."""


class RayEngine:
    """Tasks over a cluster of Ray: the one at an address, the one that the program has, or one made here."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._address = address
        self._workers = workers

    def map(self, tasks: Sequence[RankTask], progress: Progress | None = None) -> Iterator[Outcome]:
        """An outcome for every task, as they come."""
        ray = _imported()
        waiting, finished = deque((task, 1) for task in tasks), 0
        flying: dict[Any, tuple[RankTask, int]] = {}
        with _cluster(ray, self._address, self._workers):
            start = _remote(ray)
            room = self._workers or _AHEAD * int(ray.cluster_resources().get("CPU", 1))
            try:
                while waiting or flying:
                    while waiting and len(flying) < room:
                        task, attempt = waiting.popleft()
                        flying[start.remote(task, _version())] = task, attempt
                    for reference in ray.wait(list(flying))[0]:
                        task, attempt = flying.pop(reference)
                        outcome = _outcome(ray, reference, task)
                        if outcome.payload is None and attempt < ATTEMPTS:
                            waiting.append((task, attempt + 1))
                            continue
                        finished += 1
                        if progress:
                            progress(DOING, finished / len(tasks), 0, 0)
                        yield outcome
            finally:
                for reference in flying:
                    with suppress(Exception):  # the cluster may be gone
                        ray.cancel(reference, force=True)


def _work(task: RankTask, version: str) -> bytes:
    """Does a task on a node, and answers as a worker of the pool does."""
    from stepscope.cluster.worker import answer, answered

    host = socket.gethostname()
    if version != _version():
        return answered(error=f"{host} has stepscope {_version()}, and this is {version}")
    return answer(task, f" (on {host})")


def _version() -> str:
    from importlib.metadata import version

    return version("stepscope")


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise StepscopeError(
            "--engine ray needs Ray, which is not installed",
            hint='pip install "stepscope[ray]", or --engine local',
        ) from None
    return ray


@contextmanager
def _cluster(ray: Any, address: str | None, workers: int | None) -> Iterator[None]:
    """A cluster to work on. One that the program uses already stays."""
    if ray.is_initialized():
        yield
        return
    asked = address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    made = {} if asked else {"include_dashboard": False, "num_cpus": workers or None}
    handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        _knock(asked or "")
        ray.init(address=asked or "local", **quiet, **made)
    except Exception as error:
        interrupts.pass_on()
        where = asked or "this machine"
        raise StepscopeError(
            f"no cluster of Ray could be reached at {where}: {_first_line(error)}",
            hint="ray status shows whether one runs; --engine local does without",
        ) from error
    try:
        with suppress(ValueError):  # signals are for the main thread
            for one, handler in handlers.items():
                signal.signal(one, handler)  # Ray has put its own in their place
        _hush(ray)
        yield
    finally:
        ray.shutdown()


def _hush(ray: Any) -> None:
    """What became of a worker is told by its outcome: Ray would print it too, among what a command prints."""
    module = getattr(getattr(ray, "_private", None), "worker", None)
    if module is not None and hasattr(module, "print_worker_logs"):
        module.print_worker_logs = lambda *_, **__: None


def _knock(address: str) -> None:
    """Fails at once where nobody listens: Ray itself would try for a minute, and then end the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _remote(ray: Any) -> Any:
    """The function on the nodes, spread over them. Who tries again is the head: it does so without noise."""
    held = ray.cluster_resources().get("memory", 0)
    needs = {"memory": _TASK_BYTES} if held >= _TASK_BYTES else {}
    return ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD", **needs)(_work)


def _outcome(ray: Any, reference: Any, task: RankTask) -> Outcome:
    try:
        payload, error, detail = read_answer(ray.get(reference))
    except Exception as problem:  # noqa: BLE001  # a rank that cannot be read is told, the rest stands
        interrupts.pass_on()
        if isinstance(problem, ray.exceptions.WorkerCrashedError):
            return Outcome(task, error="its worker was killed or crashed")
        return Outcome(task, error=f"{type(problem).__name__}: {_first_line(problem)}", detail=str(problem))
    return Outcome(task, None if error else payload, error, detail)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
