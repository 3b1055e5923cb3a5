"""Work in background threads: a bounded queue, and a worker that runs jobs in order.

An interrupt may come at any moment. `queue.Queue` can then be left locked, and whoever tidies up waits for
ever; what is here is built on `queue.SimpleQueue`, which cannot.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BackgroundWorker", "BoundedQueue", "unless_done_in"]

Item = TypeVar("Item")


@contextmanager
def unless_done_in(seconds: float, do: Callable[[], object]) -> Iterator[None]:
    """Does something in another thread if the block takes longer than that."""
    timer = threading.Timer(seconds, do)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else it may hold what belongs to a library that is taken apart as the program ends


class BoundedQueue(Generic[Item]):
    """A queue between two threads that holds a limited number of items."""

    def __init__(self, size: int) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(size):
            self._room.put(None)

    def put(self, item: Item) -> None:
        """Waits for room, then hands over."""
        self._room.get()
        self._items.put(item)

    def get(self) -> Item:
        """Waits for the next thing."""
        item = self._items.get()
        self._room.put(None)
        return item

    def let_go(self) -> None:
        """Makes room for one more: who waits to hand over goes on, though nobody takes."""
        self._room.put(None)


class BackgroundWorker:
    """Runs jobs in order in another thread; an error is raised at the next job or at the end."""

    def __init__(self, ahead: int = 1) -> None:
        self._jobs: BoundedQueue[Callable[[], object] | None] = BoundedQueue(ahead)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="stepscope-worker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._jobs.let_go()  # an interrupt between finding room and handing over has lost that room
        self._jobs.put(None)
        self._thread.join()
        if self._error and failed is None:
            raise self._error

    def run(self, job: Callable[[], object]) -> None:
        """Takes a job; waits if too many are waiting."""
        if self._error:
            raise self._error
        self._jobs.put(job)

    def wait(self) -> None:
        """Waits until every job taken so far is done."""
        done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.run(partial(done.put, None))
        while True:
            with suppress(queue.Empty):  # after an error no job is run any more
                return done.get(timeout=0.05)
            if self._error:
                raise self._error

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """The same items, each fetched here while the one before it is in use."""
        fetched: queue.SimpleQueue[tuple[list[Item], BaseException | None]] = queue.SimpleQueue()

        def fetch() -> None:
            try:
                fetched.put(([next(items)], None))
            except StopIteration:
                fetched.put(([], None))
            except BaseException as error:  # noqa: BLE001 - raised again where the item is awaited
                fetched.put(([], error))

        self.run(fetch)
        while True:
            found, error = fetched.get()
            if error:
                raise error
            if not found:
                return
            self.run(fetch)
            yield found[0]

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error:
                continue
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - raised again in the other thread
                self._error = error
