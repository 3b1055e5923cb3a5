from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.cpu_pauses import CpuPause
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.cpu_operators import cpu_operators

FEATURES = {
    "name": "aten::stft",
    "phase": "forward",
    "user_frame": "train.py(9): features",
    "calls": 20,
    "per_step": 2.0,
    "host_ns": 30 * MS,
    "computing_ns": 27 * MS,
    "starved_ns": 20 * MS,
}


def advised(
    *ops: dict[str, Any], pauses: tuple[dict[str, Any], ...] = (), copies: tuple[dict[str, Any], ...] = ()
) -> Advice | None:
    return cpu_operators(mean_step(), drawn(StepOp, *ops), drawn(CpuPause, *pauses), drawn(Copy, *copies))


def at_most(advice: Advice) -> float:
    return mean_step().gain(advice.saving).high_share


def test_it_names_the_operators_and_their_place() -> None:
    advice = assert_bounded(advised(FEATURES), mean_step())
    assert advice.saving.waited_ns[0] == 1.4 * MS  # as it was recorded: that stretches short ones
    assert "aten::stft (2.00 ms, 2 calls a step)" in advice.because
    assert str(advice.locations[0]) == "train.py:9 features"


def test_the_host_may_run_ahead_of_the_gpu_without_them() -> None:
    # Of 9 ms the host alone takes 7.2 and the GPU 5: without 2 ms the host needs 5.2, and 3.8 ms are gone.
    assert at_most(assert_bounded(advised(FEATURES), mean_step())) == pytest.approx(3.8 / 9)
    slow_gpu = mean_step(busy_ns=7.0 * MS, starved_ns=3.0 * MS)
    advice = cpu_operators(slow_gpu, drawn(StepOp, FEATURES), drawn(CpuPause), drawn(Copy))
    assert advice is not None
    assert slow_gpu.gain(advice.saving).high_share == pytest.approx(2 / 7), "the GPU takes 7 ms of 7 or 9"


def test_views_loading_and_what_launches_do_not_count() -> None:
    assert advised({**FEATURES, "name": "aten::view", "computing_ns": 0}) is None
    assert advised({**FEATURES, "computing_ns": 14 * MS}) is None, "mostly short operators"
    assert advised({**FEATURES, "phase": "dataloader"}) is None
    assert advised({**FEATURES, "launches": 20}) is None
    assert advised({**FEATURES, "within": "aten::spectrogram"}) is None
    assert advised({**FEATURES, "starved_ns": MS}) is None


def test_the_python_between_them_prepares_the_same_data() -> None:
    pause = {"device": "0", "pauses": 10, "idle_ns": 32 * MS, "computing_ns": 20 * MS}
    advice = assert_bounded(advised(FEATURES, pauses=(pause, pause | {"device": "1"})), mean_step())
    assert advice.saving.waited_ns[0] == pytest.approx(1.4 * MS)
    assert advice.saving.starved_ns == pytest.approx((0.7 * 1.2 * MS, 1.2 * MS))
    assert at_most(advice) == pytest.approx(4 / 9), "the GPU alone takes 5 ms"
    assert "It waits 1.20 ms for the Python between them." in advice.because


def test_some_calls_of_an_operator_compute_and_others_launch() -> None:
    casts = {**FEATURES, "name": "aten::to", "calls": 200, "launches": 10, "host_ns": 80 * MS}
    pause = {"device": "0", "pauses": 10, "idle_ns": 16 * MS, "computing_ns": 16 * MS}
    advice = assert_bounded(advised(casts, pauses=(pause, pause | {"device": "1"})), mean_step())
    assert advice.saving.waited_ns[0] == pytest.approx(0.7 * 1.6 * MS), "what computes in the pauses"
    assert "aten::to (1.60 ms" in advice.because
    beside = {**FEATURES, "starved_ns": 12 * MS}
    advice = assert_bounded(advised(beside, casts, pauses=(pause,)), mean_step())
    assert advice.saving.waited_ns[0] == pytest.approx(0.7 * 1.6 * MS), "the pauses count once"
    assert advised(casts) is None, "the GPU waits for a copy"
    assert advised({**casts, "computing_ns": 0}, pauses=(pause,)) is None, "a runtime call takes the time"


def test_what_it_prepares_is_copied_while_it_is_small_or_ahead() -> None:
    copy = {
        "direction": "HtoD",
        "host_memory": "pageable",
        "calls": 10,
        "bytes": 10**9,
        "exposed_ns": 15 * MS,
    }
    advice = assert_bounded(advised(FEATURES, copies=(copy, copy | {"host_memory": "pinned"})), mean_step())
    assert advice.saving.waited_ns == (1.4 * MS, 3.5 * MS), "half of the shorter step"
    assert at_most(advice) == pytest.approx(3.5 / 7)
    assert "Copies of data from pageable memory take 1.50 ms." in advice.because
    small = assert_bounded(advised(FEATURES, copies=(copy | {"bytes": 10_000},)), mean_step())
    assert at_most(small) == pytest.approx(3.8 / 9)


def test_large_memory_that_was_copied_is_given_back_while_the_gpu_waits() -> None:
    pause = {"device": "0", "pauses": 10, "idle_ns": 20 * MS, "computing_ns": 20 * MS, "freeing_ns": 10 * MS}
    advice = assert_bounded(advised(FEATURES, pauses=(pause,)), mean_step())
    assert advice.saving.waited_ns[0] == 1.4 * MS
    assert at_most(advice) == pytest.approx(4 / 9)
    assert "After them it waits 1.00 ms: large memory of the CPU is given back." in advice.because
