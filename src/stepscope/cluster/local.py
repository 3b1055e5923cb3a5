"""The processors of this machine: a pool of processes, each with one rank at a time."""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import interrupts, memory
from stepscope.children import Child
from stepscope.cluster import worker
from stepscope.cluster.engine import ATTEMPTS, DOING, Outcome
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.cluster.tasks import RankTask
    from stepscope.streams import Progress

__all__ = ["HereEngine", "LocalEngine", "cores"]

_GRACE_S = 2.0
"""How long a worker has for tidying up when it is told to end."""


def cores() -> int:
    """How many processors this process may use: those it is bound to, and what its container is given."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(bound, int(quota) // int(period)))  # `max` for no limit is no number
    return bound


class HereEngine:
    """This very process: for few ranks a second one costs more than it saves."""

    def map(self, tasks: Sequence[RankTask], progress: Progress | None = None) -> Iterator[Outcome]:
        """An outcome for every task, in order."""
        from stepscope.cluster.tasks import done

        for place, task in enumerate(tasks):
            try:
                outcome = Outcome(task, done(task))
            except Exception as error:  # noqa: BLE001  # a rank that cannot be read is told, the rest stands
                interrupts.pass_on()
                outcome = Outcome(task, None, *worker.failure(error))
            yield outcome
            if progress:
                progress(DOING, (place + 1) / len(tasks), 0, 0)


@dataclass
class _Job:
    """A task and its failures so far."""

    task: RankTask
    tried: set[int] = field(default_factory=set)
    """Numbers of the workers that failed with it."""
    attempts: int = 0
    alone: bool = False
    """Whether it may have taken a worker down, for lack of memory perhaps: then it gets all there is."""


class _Worker:
    """A process of the pool."""

    def __init__(self, number: int, database_bytes: int) -> None:
        child = Child("stepscope.cluster.worker", str(database_bytes))
        self.process, self.channel = child.process, child.channel
        self._child = child
        self.number = number
        self.job: _Job | None = None

    def begin(self, job: _Job) -> bool:
        """Hands over a task; False if nobody is there to take it."""
        self.job = job
        try:
            self.channel.send(job.task)
        except OSError:
            return False
        return True

    def ended(self) -> str:
        """How it ended, for it did."""
        self.channel.close()
        return f"its worker {self._child.how_it_ended()}"


class LocalEngine:
    """A pool of processes. One that dies is replaced, and what it was at is done again."""

    def __init__(self, workers: int | None = None) -> None:
        self._most = workers or memory.workers_that_fit(cores())

    def map(self, tasks: Sequence[RankTask], progress: Progress | None = None) -> Iterator[Outcome]:
        """An outcome for every task, as they come."""
        waiting = deque(map(_Job, tasks))
        finished = 0
        with _pool(min(self._most, len(tasks))) as pool:
            while waiting or pool.busy:
                pool.hand_out(waiting)
                for job, outcome in pool.answers():
                    if outcome.payload is None and job.attempts < ATTEMPTS:
                        waiting.append(job)  # behind the others: what was wrong may have passed by then
                        continue
                    finished += 1
                    if progress:
                        progress(DOING, finished / len(tasks), 0, 0)
                    yield outcome


class _Pool:
    """The workers that there are now."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._database_bytes = memory.share_of_workers(size)
        self.workers: list[_Worker] = []

    @property
    def busy(self) -> list[_Worker]:
        """Those at work."""
        return [one for one in self.workers if one.job]

    def hand_out(self, waiting: deque[_Job]) -> None:
        """Gives jobs to idle workers, one each; a job that failed goes to another one if there is one."""
        for job in list(waiting):
            if any(one.job.alone for one in self.busy if one.job) or (job.alone and self.busy):
                continue
            if (idle := self._idle_for(job)) is None:
                return
            waiting.remove(job)
            idle.begin(job)  # if nobody takes it, `answers` finds out

    def _idle_for(self, job: _Job) -> _Worker | None:
        idle = [one for one in self.workers if not one.job]
        fresh = [one for one in idle if one.number not in job.tried]
        if not fresh and len(self.workers) < self._size:
            self._started += 1
            fresh = [_Worker(self._started, self._database_bytes)]
            self.workers += fresh
        return next(iter(fresh or idle), None)

    def answers(self) -> Iterator[tuple[_Job, Outcome]]:
        """Waits for at least one, and gives all that came."""
        by_channel = {one.channel: one for one in self.busy}
        for channel in wait(list(by_channel)):
            one = by_channel[channel]  # type: ignore[index]  # connections only
            job = one.job
            if job is None:
                continue
            one.job, job.attempts = None, job.attempts + 1
            try:
                payload, error, detail = worker.read_answer(one.channel.recv_bytes())
                outcome = Outcome(job.task, None if error else payload, error, detail)
            except (EOFError, OSError):
                self.workers.remove(one)
                job.alone = True
                outcome = Outcome(job.task, error=one.ended())
            if outcome.payload is None:
                job.tried.add(one.number)
            yield job, outcome

    def end(self) -> None:
        """Ends every worker at once."""
        for one in self.workers:
            one.process.terminate()
        last = time.monotonic() + _GRACE_S
        for one in self.workers:
            try:
                one.process.wait(max(0.0, last - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
            one.channel.close()


@contextmanager
def _pool(size: int) -> Iterator[_Pool]:
    """Workers that are gone afterwards, whatever happens."""
    pool = _Pool(size)
    try:
        yield pool
    finally:
        pool.end()
