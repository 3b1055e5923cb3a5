"""What waits cost, as text."""

from __future__ import annotations

from dataclasses import replace

from tests.findings.drawn import MS, mean_step

from stepscope.findings._waits import Reason, Wait, WaitCause, held_up

WAIT = Wait(Reason(WaitCause.READ), "train.py(7): forward", calls=40, waited_ns=2 * MS, starved_ns=4 * MS)


def test_the_host_time_and_the_idle_time_of_the_gpu_are_told() -> None:
    step = replace(mean_step(), steps=10, step_ns=10 * MS, starved_ns=5 * MS)
    assert held_up(step, 1 * MS, [WAIT]) == (
        "1.00 ms of host time (10.0 % of the step). Right after that the GPU is idle for 400 µs. "
        "Over the whole step, the GPU waits 5.00 ms for the host."
    )


def test_a_gpu_that_is_never_idle_is_not_mentioned() -> None:
    step = replace(mean_step(), steps=10, step_ns=10 * MS, starved_ns=0.0, latency_ns=0.0)
    text = held_up(step, 1 * MS, [replace(WAIT, starved_ns=0)])
    assert text == "1.00 ms of host time (10.0 % of the step)."


def test_without_stacks_it_says_how_to_see_the_lines() -> None:
    text = held_up(mean_step(), 1 * MS, [replace(WAIT, frame=None)])
    assert text.endswith("Record with with_stack=True to see which lines these are.")
