from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.repeated_backwards import RepeatedBackwards
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.repeated_backwards import repeated_backwards

# Ten steps: three losses through the same thirty operators, and ten of their own.
ROW = {"steps": 10, "passes": 3, "operators": 400, "runs": 1000, "host_ns": 30 * MS, "device_ns": 20 * MS}
NODE = {
    "name": "autograd::engine::evaluate_function: AddmmBackward0",
    "user_frame": "train.py(9): step",
    "host_ns": 40 * MS,
    "calls": 1000,
}


def judged(row: dict[str, Any] | None = None, **more: Any) -> Advice | None:
    rows = () if row is None else (ROW | row,)
    return repeated_backwards(mean_step(), drawn(RepeatedBackwards, *rows), drawn(StepOp, NODE), **more)


def test_losses_go_backward_one_by_one() -> None:
    advice = assert_bounded(judged({}), mean_step())
    assert advice.title == "Backward runs 3 times through one forward pass"
    assert "For 40 operators of a forward pass autograd runs 100 nodes" in advice.because
    assert "take 3.00 ms of a step on the host and 2.00 ms on the GPU" in advice.because
    assert [str(one) for one in advice.locations] == ["train.py:9 step"]
    # 85 to 130 % of three tenths of the host's time go. Of a step of 7 ms it alone takes 5.6, then 3.4.
    gain = mean_step().gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.3, 1 - 5.6 * (1 - 1.3 * 0.3) / 7))


def test_it_is_silent() -> None:
    assert judged() is None
    assert judged({"steps": 8}) is None, "not in every step"


def test_the_threshold() -> None:
    assert judged({"host_ns": 2 * MS, "device_ns": MS}, least_share=0.01) is not None
    assert judged({"host_ns": 2 * MS, "device_ns": MS}, least_share=0.1) is None
