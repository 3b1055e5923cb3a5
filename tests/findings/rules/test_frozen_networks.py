from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.before_training import BeforeTraining
from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.frozen_networks import frozen_networks

BUSY = busy_pace(busy_ns=9.0 * MS)
ENCODER = {
    "user_frame": "train.py(9): encode",
    "steps": 10,
    "products": 192,
    "ops": 20_000,
    "longest": "aten::linear, aten::mul",
    "host_ns": 40 * MS,
    "device_ns": 30 * MS,
}


def found(copied: int = 0, ops: tuple[dict[str, Any], ...] = (), **changed: Any) -> Advice | None:
    copies = ({"direction": "HtoD", "calls": copied},) if copied else ()
    tables = drawn(BeforeTraining, ENCODER | changed), drawn(Copy, *copies), drawn(StepOp, *ops)
    return frozen_networks(BUSY, *tables)


def called(*names: str, calls: int, phase: str = "other") -> tuple[dict[str, Any], ...]:
    return tuple({"name": f"aten::{name}", "phase": phase, "calls": calls} for name in names)


def test_its_time_goes_at_most_and_nothing_is_sure() -> None:
    advice = assert_bounded(found(), BUSY)
    gain = BUSY.gain(advice.saving)
    assert gain.low_share == 0
    assert gain.high_share == pytest.approx(3 / 9, abs=0.1)
    assert advice.certainty == "possible"
    assert "192 matrix products or convolutions" in advice.because
    assert "Nothing is copied to the GPU in a step" in advice.because
    assert [str(place) for place in advice.locations] == ["train.py:9 encode"]


def test_what_is_copied_may_be_new() -> None:
    assert "Nothing is copied" not in assert_bounded(found(copied=10), BUSY).because


def test_it_is_silent_for_small_networks_other_work_and_single_steps() -> None:
    assert found(host_ns=MS, device_ns=MS) is None
    assert found(products=0) is None
    assert found(steps=3) is None


@pytest.mark.parametrize(
    "ops, average",
    [
        (called("_foreach_lerp_", calls=10), True),
        (called("mul_", "add_", calls=500), True),
        (called("lerp_", calls=10), False),  # of a loss
        (called("_foreach_lerp_", calls=10, phase="optimizer"), False),
        (called("add_", calls=500), False),
    ],
)
def test_an_average_of_the_weights_does_learn(ops: tuple[dict[str, Any], ...], average: bool) -> None:
    assert (found(ops=ops) is None) is average
