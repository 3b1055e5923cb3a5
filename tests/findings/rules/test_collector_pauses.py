from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, fix_for, mean_step

from stepscope.analyses.collector_pauses import CollectorPause
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Framework
from stepscope.findings.rules.collector_pauses import collector_pauses


def paused(step: int | None, total_ns: int = MS, **told: Any) -> dict[str, Any]:
    idle = {"pauses": 1, "longest_ns": total_ns, "idle_ns": total_ns // 2, "generation": 2}
    return {"step": step, "total_ns": total_ns, **idle, **told}


EVERY = [paused(step) for step in range(10)]


def judged(*rows: dict[str, Any], step: MeanStep | None = None, **thresholds: float) -> Advice | None:
    return collector_pauses(step or mean_step(), drawn(CollectorPause, *rows), **thresholds)


def test_a_pause_in_every_step() -> None:
    advice = assert_bounded(judged(*EVERY), mean_step())
    assert advice.saving.waited_ns == pytest.approx((0.5 * MS - MS / 100, MS))
    assert advice.certainty == "likely"
    assert "gc.freeze()" in advice.fix


def test_what_comes_rarely_promises_nothing_at_least() -> None:
    rows = [paused(3, 20 * MS), *(paused(step, 10_000, generation=0) for step in range(10))]
    advice = assert_bounded(judged(*rows), mean_step())
    assert advice.saving.waited_ns == pytest.approx((0.0, 2.01 * MS))
    assert advice.certainty == "possible"
    assert "in 1 step only" in advice.because


def test_no_more_than_the_gpu_waits() -> None:
    step = mean_step(starved_ns=0.3 * MS)
    assert assert_bounded(judged(*EVERY, step=step), step).saving.waited_ns == pytest.approx(
        (0.29 * MS, 0.3 * MS)
    )


def test_without_a_gpu_the_host_is_the_step() -> None:
    step = mean_step(device=None, busy_ns=0.0, starved_ns=0.0)
    rows = [{**row, "idle_ns": None} for row in EVERY]
    advice = assert_bounded(judged(*rows, step=step), step)
    assert advice.saving.waited_ns == pytest.approx((0.99 * MS, MS))
    assert "GPU" not in advice.because


def test_pauses_longer_than_the_step_promise_no_more_than_it() -> None:
    step = mean_step(device=None, busy_ns=0.0, starved_ns=0.0)
    assert_bounded(judged(*(paused(number, 100 * MS) for number in range(10)), step=step), step)


def test_it_is_silent_where_they_are_short_outside_or_hidden() -> None:
    assert judged() is None
    assert judged(*(paused(step, 10_000) for step in range(10))) is None
    assert judged(*(paused(None) for _ in range(10))) is None
    assert judged(*EVERY, step=busy_pace(starved_ns=0.05 * MS)) is None
    assert judged(*EVERY, least_share=0.5) is None


def test_the_threshold_of_rare_pauses() -> None:
    rows = EVERY[:4]
    assert assert_bounded(judged(*rows), mean_step()).saving.waited_ns[0] == 0
    assert assert_bounded(judged(*rows, recurring_share=0.3), mean_step()).saving.waited_ns[0] > 0


def test_frameworks_have_their_own_way() -> None:
    young = judged(*({**row, "generation": 1} for row in EVERY))
    assert fix_for(young, Framework.MEGATRON) == "--manual-gc --manual-gc-interval 100"
    assert "on_step_end" in fix_for(young, Framework.HF_TRAINER)


def test_a_full_collection_in_every_step_is_asked_for() -> None:
    advice = assert_bounded(judged(*EVERY), mean_step())
    assert advice.fix.startswith("# a full collection in every step is one that is asked for")
    few = assert_bounded(judged(*EVERY[1:]), mean_step())
    assert few.fix.startswith("import gc")
