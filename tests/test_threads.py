"""Handing over between threads, and jobs done aside."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.commands import PATIENCE_S

from stepscope.threads import BackgroundWorker, BoundedQueue, unless_done_in


def wait_for(happened: Callable[[], bool]) -> None:
    """Until it has happened; what a test asserts then says whether it did."""
    patience = time.monotonic() + PATIENCE_S
    while not happened() and time.monotonic() < patience:
        time.sleep(0.001)


def test_a_handover_holds_so_many_and_no_more() -> None:
    handover: BoundedQueue[int] = BoundedQueue(2)
    given: list[int] = []

    def give() -> None:
        for number in range(5):
            handover.put(number)
            given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    wait_for(lambda: len(given) == 2)
    time.sleep(0.1)  # time enough for a third
    assert given == [0, 1]
    assert [handover.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    giver.join()


def test_who_waits_to_hand_over_can_be_let_go() -> None:
    handover: BoundedQueue[int] = BoundedQueue(0)
    giver = threading.Thread(target=handover.put, args=(1,))
    giver.start()
    handover.let_go()
    giver.join(timeout=PATIENCE_S)
    assert not giver.is_alive()


def test_jobs_are_done_in_order() -> None:
    done: list[int] = []
    with BackgroundWorker(2) as aside:
        for number in range(9):
            aside.run(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(9))


def test_a_job_that_fails_is_heard_of() -> None:
    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), BackgroundWorker() as aside:
        aside.run(fail)


def test_an_interrupt_while_a_job_is_handed_over_leaves_nobody_waiting() -> None:
    class Interrupted(queue.SimpleQueue[Any]):
        first = True

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            if self.first:
                self.first = False
                raise KeyboardInterrupt
            super().put(item, block, timeout)

    def hand_over() -> None:
        worker = BackgroundWorker()
        worker._jobs._items = Interrupted()
        with pytest.raises(KeyboardInterrupt), worker:
            worker.run(print)

    given = threading.Thread(target=hand_over, daemon=True)
    given.start()
    given.join(timeout=PATIENCE_S)
    assert not given.is_alive()


def test_what_failed_first_is_what_is_raised() -> None:
    def fail_too() -> None:
        with BackgroundWorker() as aside:
            aside.run(lambda: 1 // 0)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail_too()


def test_things_are_fetched_one_ahead() -> None:
    began: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            began.append(number)
            yield number

    with BackgroundWorker(ahead=4) as aside:
        found = aside.ahead(items())
        assert began == []  # not before somebody asks
        assert next(found) == 0
        wait_for(lambda: len(began) == 2)
        assert began == [0, 1]
        assert list(found) == [1, 2]


def test_what_fails_while_fetching_is_raised_where_it_is_awaited() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    with BackgroundWorker(ahead=4) as aside:
        found = aside.ahead(items())
        assert next(found) == 1
        with pytest.raises(ValueError, match="broken"):
            next(found)


def test_a_block_that_is_done_in_time_leaves_no_thread() -> None:
    before, done = threading.active_count(), threading.Event()
    with unless_done_in(60, done.set):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert not done.is_set()
    with unless_done_in(0.01, done.set):
        assert done.wait(30)
