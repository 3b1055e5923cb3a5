from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.many_joins import ManyJoins
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.stacked_tensors import stacked_tensors

# The host alone takes the whole step of 10 ms, the GPU 1 ms of it; there are ten steps.
STEP = mean_step(
    busy_ns=1.0 * MS, starved_ns=8.0 * MS, latency_ns=1.0 * MS, waiting_ns=0.0, host_path_share=1.0
)
STACKS = {
    "name": "aten::stack",
    "user_frame": "replay.py(35): draw",
    "calls": 50,
    "tensors": 48_000,
    "host_ns": 40 * MS,
    "before_ns": 30 * MS,
    "device_ns": MS,
}

OP = {"name": "aten::stack", "calls": 50, "launches": 800}


def found(*rows: dict[str, Any], op: dict[str, Any] = OP, **thresholds: float) -> Advice | None:
    return stacked_tensors(STEP, drawn(StepOp, op), drawn(ManyJoins, *rows), **thresholds)


def test_calls_and_the_lists_before_them_go() -> None:
    advice = assert_bounded(found(STACKS), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.4, 0.7), abs=0.01)
    assert "5 calls a step of torch.stack join at least 960 tensors each" in advice.because
    assert "4.00 ms of the host's time. Before them, Python takes 3.00 ms" in advice.because
    assert [str(place) for place in advice.locations] == ["replay.py:35 draw"]


def test_several_places_add_up() -> None:
    joins = STACKS | {"name": "aten::cat", "user_frame": None, "host_ns": 10 * MS, "before_ns": 0}
    advice = assert_bounded(found(STACKS, joins), STEP)
    assert "torch.cat and torch.stack" in advice.because
    assert STEP.gain(advice.saving).high_share == pytest.approx(0.8, abs=0.01)


def test_it_is_silent() -> None:
    assert found() is None
    assert found(STACKS, op=OP | {"launches": 50}) is None, "a launch for each call copies few tensors"
    assert found(STACKS | {"host_ns": 2 * MS, "before_ns": MS}) is None, "next to nothing"
    assert found(STACKS, least_share=0.9) is None
