from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, facts, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.pageable_results import pageable_results

# Ten steps: 5 MB each, 2 ms with nothing beside them. At 25 GB/s, half of the bus, that takes 0.2 ms.
SCORES = {
    "direction": "DtoH",
    "host_memory": "pageable",
    "calls": 10,
    "bytes": 50_000_000,
    "total_ns": 20 * MS,
    "exposed_ns": 20 * MS,
}
WAIT = {
    "call": "cudaMemcpyAsync",
    "op": "aten::copy_",
    "calls": 10,
    "waited_ns": 22 * MS,
    "starved_ns": 15 * MS,
}
ARGMAX = {
    "name": "aten::argmax",
    "phase": "forward",
    "calls": 10,
    "host_ns": 10 * MS,
    "computing_ns": 10 * MS,
    "starved_ns": 10 * MS,
}


def judged(
    *copies: dict[str, Any],
    wait: dict[str, Any] = WAIT,
    ops: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> Advice | None:
    frame = "evaluate.py(7): step"
    table, by_op, by_frame = (
        drawn(Copy, *({**row, "place": place} for row in copies)) for place in (None, "aten::copy_", frame)
    )
    syncs = drawn(HostSync, {**wait, "user_frame": frame})
    return pageable_results(mean_step(), facts(), table, by_op, by_frame, syncs, drawn(StepOp, *ops), **more)


def test_it_says_how_slow_the_copies_are_and_where() -> None:
    advice = assert_bounded(judged(SCORES), mean_step())
    assert "4.77 MiB are copied to the CPU at 2.50 GB/s" in advice.because
    assert "25 to 55 GB/s" in advice.because
    assert [str(one) for one in advice.locations] == ["evaluate.py:7 step"]
    assert advice.saving.waited_ns[0] == pytest.approx(1.8 * MS)
    assert advice.saving.starved_ns == (0.0, 1.5 * MS)
    assert advice.fix.startswith("y = x.to"), "nothing on the CPU computes with it"


def test_what_the_cpu_computes_goes_with_the_copy() -> None:
    advice = assert_bounded(judged(SCORES, ops=(ARGMAX,)), mean_step())
    assert "Then the GPU waits 1.00 ms for operators that compute on the CPU: aten::argmax." in advice.because
    assert advice.saving.starved_ns[0] == pytest.approx(0.7 * MS)
    assert advice.fix.startswith("found = scores.argmax")
    launched = {**ARGMAX, "launches": 10}
    assert "argmax" not in assert_bounded(judged(SCORES, ops=(launched,)), mean_step()).because


def test_many_copies_are_weights_that_are_saved() -> None:
    many = {**SCORES, "calls": 160, "bytes": 200_000_000}
    assert assert_bounded(judged(many, ops=(ARGMAX,)), mean_step()).saving.starved_ns == (0.0, 0.0)


def test_large_pinned_copies_of_the_trace_tell_the_rate() -> None:
    batches = {"direction": "HtoD", "host_memory": "pinned", "calls": 10, "bytes": 10**9, "gb_per_s": 50.0}
    advice = assert_bounded(judged(SCORES, batches), mean_step())
    assert advice.saving.waited_ns[0] == pytest.approx(2 * MS - 5e6 / 45)


@pytest.mark.parametrize(
    "other",
    [
        {"host_memory": "pinned"},
        {"direction": "HtoD"},
        {"calls": 100},  # half a MB each
        {"exposed_ns": 2 * MS},  # hidden behind kernels
    ],
)
def test_it_is_silent(other: dict[str, Any]) -> None:
    assert judged({**SCORES, **other}) is None


def test_a_wait_for_kernels_is_no_slow_copy() -> None:
    assert judged(SCORES, wait={**WAIT, "waited_ns": 50 * MS}) is None


def test_what_goes_back_to_the_gpu_belongs_to_another_rule() -> None:
    out, back = ({**SCORES, "calls": 20, "direction": direction} for direction in ("DtoH", "HtoD"))
    assert judged(out, back) is None


def test_the_threshold() -> None:
    assert judged(SCORES, least_share=0.17) is not None
    assert judged(SCORES, least_share=0.19) is None
