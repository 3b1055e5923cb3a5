"""Handing over between threads, and jobs done aside."""

from __future__ import annotations

import threading
import time

import pytest

from stepscope.threads import Aside, Handover


def test_a_handover_holds_so_many_and_no_more() -> None:
    handover: Handover[int] = Handover(2)
    given: list[int] = []

    def give() -> None:
        for number in range(5):
            handover.put(number)
            given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    time.sleep(0.1)
    assert given == [0, 1]
    assert [handover.get() for _ in range(5)] == [0, 1, 2, 3, 4]
    giver.join()


def test_who_waits_to_hand_over_can_be_let_go() -> None:
    handover: Handover[int] = Handover(0)
    giver = threading.Thread(target=handover.put, args=(1,))
    giver.start()
    handover.let_go()
    giver.join(timeout=5)
    assert not giver.is_alive()


def test_jobs_are_done_in_order() -> None:
    done: list[int] = []
    with Aside(2) as aside:
        for number in range(9):
            aside.run(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(9))


def test_a_job_that_fails_is_heard_of() -> None:
    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"), Aside() as aside:
        aside.run(fail)


def test_what_failed_first_is_what_is_raised() -> None:
    def fail_too() -> None:
        with Aside() as aside:
            aside.run(lambda: 1 // 0)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail_too()
