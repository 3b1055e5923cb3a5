"""The same over Ray: names and paths go to its nodes, bytes come back. The only module that imports it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from stepscope import interrupts
from stepscope.cluster.engine import ATTEMPTS, DOING, Outcome
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.cluster.tasks import RankTask
    from stepscope.streams import Progress

__all__ = ["RayEngine"]

_TASK_BYTES = 1 << 30
"""What a rank may take on a node, so that no more are done there than fit."""
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
        waiting, flying, finished = list(reversed(tasks)), dict[Any, RankTask](), 0
        with _cluster(ray, self._address, self._workers):
            start = _remote(ray)
            room = self._workers or _AHEAD * int(ray.cluster_resources().get("CPU", 1))
            try:
                while waiting or flying:
                    while waiting and len(flying) < room:
                        task = waiting.pop()
                        flying[start.remote(task, _version())] = task
                    for reference in ray.wait(list(flying))[0]:
                        outcome = _outcome(ray, reference, flying.pop(reference))
                        del reference  # or Ray keeps what it brought
                        finished += 1
                        if progress:
                            progress(DOING, finished / len(tasks), 0, 0)
                        yield outcome
            finally:
                for reference in flying:
                    with suppress(Exception):  # the cluster may be gone
                        ray.cancel(reference, force=True)


class _FailedError(Exception):
    """Why a rank could not be done, on which node: text only, for it travels."""


def _work(task: RankTask, version: str) -> bytes:
    """Does a task on a node."""
    from stepscope.cluster.tasks import done
    from stepscope.cluster.worker import failure

    if version != _version():
        raise _FailedError(f"{socket.gethostname()} has stepscope {_version()}, not {version}", "")
    try:
        return done(task)
    except Exception as error:  # noqa: BLE001  # whatever it is, it travels as text
        reason, detail = failure(error)
        raise _FailedError(f"{reason} (on {socket.gethostname()})", detail) from None


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
    try:
        ray.init(address=asked or "local", **quiet, **made)
    except Exception as error:
        interrupts.pass_on()
        where = asked or "this machine"
        raise StepscopeError(
            f"no cluster of Ray could be reached at {where}: {str(error).splitlines()[0]}",
            hint="ray status shows whether one runs; --engine local does without",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _remote(ray: Any) -> Any:
    """The function on the nodes: Ray itself tries again, and elsewhere, where it or its worker fails."""
    held = ray.cluster_resources().get("memory", 0)
    needs = {"memory": _TASK_BYTES} if held >= _TASK_BYTES else {}
    return ray.remote(
        num_cpus=1,
        max_retries=ATTEMPTS - 1,
        retry_exceptions=True,
        scheduling_strategy="SPREAD",
        max_calls=0,
        **needs,
    )(_work)


def _outcome(ray: Any, reference: Any, task: RankTask) -> Outcome:
    try:
        return Outcome(task, ray.get(reference))
    except Exception as error:  # noqa: BLE001  # a rank that cannot be read is told, the rest stands
        interrupts.pass_on()
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, _FailedError):
            return Outcome(task, error=cause.args[0], detail=cause.args[1])
        return Outcome(task, error=f"{type(error).__name__}: {_first_line(error)}", detail=str(error))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
