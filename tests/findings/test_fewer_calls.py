from __future__ import annotations

import pytest
from tests.findings.drawn import MS, busy_pace, drawn, mean_step

from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Saving
from stepscope.findings._fewer_calls import called_as, fewer_calls, host_part, run_ahead, with_their_calls
from stepscope.findings.mean_step import FasterDevice

NODE = "autograd::engine::evaluate_function: "
HOST_BOUND = mean_step(
    unprofiled_ns=(8.0 * MS, 8.0 * MS),
    busy_ns=2.0 * MS,
    starved_ns=8.0 * MS,
    faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 1.0, 1.0)),
)


@pytest.mark.parametrize(
    "name, called",
    [
        ("aten::mul", "aten::mul"),
        (NODE + "MulBackward0", "aten::mul"),
        (NODE + "NativeLayerNormBackward0", "aten::native_layer_norm"),
        (NODE + "IndexBackward0", "aten::index"),
        (NODE + "torch::autograd::AccumulateGrad", NODE + "torch::autograd::AccumulateGrad"),
        (None, None),
    ],
)
def test_a_gradient_is_that_of_an_operator(name: str | None, called: str | None) -> None:
    (op,) = drawn(StepOp, {"name": name})
    assert called_as(op) == called


def test_the_part_of_the_host_counts_what_is_inside_of_others_once() -> None:
    rows = {"host_ns": 30}, {"host_ns": 10, "name": "aten::mul"}, {"host_ns": 20, "within": "aten::to"}
    ops = drawn(StepOp, *rows)
    assert host_part((op for op in ops if op.name), ops) == 0.25
    assert host_part([], drawn(StepOp)) == 0.0


def test_a_host_that_sets_the_pace_gains_by_its_own_part_only() -> None:
    gain = HOST_BOUND.gain(fewer_calls(HOST_BOUND, (0.25, 0.5), (2.0 * MS, 2.0 * MS)))
    assert (gain.low_share, gain.high_share) == pytest.approx((0.25, 0.5))


def test_what_is_left_of_the_device_is_a_limit() -> None:
    gain = HOST_BOUND.gain(fewer_calls(HOST_BOUND, (0.9, 0.9), (0.0, 1.0 * MS)))
    assert (gain.low_share, gain.high_share) == pytest.approx((0.75, 0.875))


def test_a_device_that_sets_the_pace_gains_by_its_own_part_only() -> None:
    step = busy_pace()
    gain = step.gain(fewer_calls(step, (0.5, 0.5), (2.0 * MS, 4.0 * MS)))
    assert (gain.low_share, gain.high_share) == pytest.approx((0.2 / 0.99, 0.4), abs=0.02)


def test_no_more_is_gained_than_goes() -> None:
    """Host and device wait for each other, and each takes half of the step."""
    both = mean_step(
        unprofiled_ns=(10.0 * MS, 10.0 * MS),
        starved_ns=5.0 * MS,
        faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.5, 0.5)),
    )
    gain = both.gain(fewer_calls(both, (0.2, 0.2), (1.0 * MS, 1.0 * MS)))
    # 1 ms of 5 on both sides: a fifth if they keep waiting for each other, but 2 ms at the most.
    assert (gain.low_share, gain.high_share) == pytest.approx((0.2, 0.2))
    assert fewer_calls(both, (0.0, 0.0), (0.0, 0.0)) == Saving()
    # Without the waits both run at once: 4 ms are left.
    ahead = both.gain(fewer_calls(both, (0.2, 0.2), (1.0 * MS, 1.0 * MS), waits_go=True))
    assert (ahead.low_share, ahead.high_share) == pytest.approx((0.2, 0.6))


def test_an_empty_step_gains_nothing() -> None:
    nothing = mean_step(unprofiled_ns=(0.0, 0.0))
    assert fewer_calls(nothing, (0.5, 0.5), (MS, MS)) == Saving()


def test_a_host_without_work_that_the_device_waited_for_runs_ahead() -> None:
    """Of 8 ms the host alone takes 6 and the device 4: without 3 ms of the host, the device sets the pace."""
    step = mean_step(
        unprofiled_ns=(8.0 * MS, 8.0 * MS),
        busy_ns=4.0 * MS,
        starved_ns=4.0 * MS,
        faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.75, 0.75)),
    )
    saving = Saving(waited_ns=(2.0 * MS, 3.0 * MS))
    gain = step.gain(run_ahead(step, saving, 3.0 * MS))
    assert (gain.low_share, gain.high_share) == pytest.approx((2 / 8, 4 / 8))
    assert step.gain(run_ahead(step, saving, 0.0)) == step.gain(saving), "no less than it was"
    gain = step.gain(run_ahead(step, saving, 5.0 * MS, 2.0 * MS))
    assert gain.high_share == pytest.approx(6 / 8), "the device takes 2 ms less, too"


def test_kernels_that_go_take_their_calls_with_them() -> None:
    """The device takes all of 10 ms and the host alone 6: that is a limit, unless it has less to do."""
    step = busy_pace(faster_device=(FasterDevice(1.0, 1.0, 1.0), FasterDevice(0.0, 0.6, 0.6)))
    saving = Saving(device_ns=(7.0 * MS, 7.0 * MS))
    assert step.gain(saving).high_share == pytest.approx(0.4, abs=0.01)
    gain = step.gain(with_their_calls(step, saving, 0.5))
    assert gain.low_share == step.gain(saving).low_share
    assert gain.high_share == pytest.approx(0.7, abs=0.01)
    assert step.gain(with_their_calls(step, saving, 0.0)).high_share == pytest.approx(0.4, abs=0.01)
