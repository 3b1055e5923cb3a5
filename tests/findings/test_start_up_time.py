"""Start-up is nobody's gain."""

from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, mean_step
from tests.findings.test_ranking import advice

from stepscope.findings.claims import Claim, Time
from stepscope.findings.start_up_time import without_start_up


def test_what_is_start_up_is_not_promised() -> None:
    told = advice(Claim(Time.STARVED), starved_ns=(2.0 * MS, 5.0 * MS))
    assert without_start_up(told, mean_step(), 4.0 * MS).saving.starved_ns == (0.0, 1.0 * MS)
    assert without_start_up(told, mean_step(), 0.0) == told


def test_a_host_that_computes_may_start_up_and_a_loader_does_not() -> None:
    step = mean_step()
    saved: dict[str, Any] = {"starved_ns": (1.0 * MS, 2.0 * MS), "waited_ns": (5.0 * MS, step.step_ns)}
    computing = without_start_up(advice(Claim(Time.STARVED), **saved), step, 3.0 * MS).saving
    starved = min(2.0 * MS, step.starved_ns - 3.0 * MS)
    assert computing.starved_ns == (0.0, starved)
    assert computing.waited_ns == (2.0 * MS, step.step_ns - starved - 3.0 * MS)
    assert computing.starved_ns[1] + computing.waited_ns[1] <= step.step_ns - 3.0 * MS
    loading = without_start_up(advice(Claim(Time.WAITED), **saved), step, 3.0 * MS).saving
    assert loading.waited_ns == saved["waited_ns"]
