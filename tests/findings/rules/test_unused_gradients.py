from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.summed_gradients import SummedGradients
from stepscope.findings import Advice
from stepscope.findings.rules.unused_gradients import unused_gradients

# The GPU alone takes the whole step of 10 ms, the host 6 ms of it.
STEP = mean_step(busy_ns=10.0 * MS, starved_ns=0.0, latency_ns=0.0, waiting_ns=0.0, host_path_share=0.6)
KEPT = {
    "backward_pass": 1,
    "steps": 10,
    "fresh": 20,
    "added": 1480,
    "fresh_first": True,
    "uses": 1,
    "ended": 1,
    "host_ns": 50 * MS,
    "device_ns": 60 * MS,
    "ended_host_ns": 50 * MS,
    "ended_device_ns": 60 * MS,
    "before_host_ns": 5 * MS,
    "before_device_ns": 5 * MS,
}
THROUGH: dict[str, Any] = {"fresh_first": False, "ended": 0, "ended_host_ns": 0, "ended_device_ns": 0}


def found(
    backward_passes: int = 1,
    *,
    optimizer: bool = True,
    after: dict[str, Any] | None = None,
    **changed: Any,
) -> Advice | None:
    classes = drawn(StepClass, {"steps": 10, "backward_passes": backward_passes, "optimizer": optimizer})
    rows = [KEPT | changed, *([after] if after else [])]
    return unused_gradients(STEP, classes, drawn(SummedGradients, *rows))


def test_the_backward_pass_ends_where_nothing_is_trained_any_more() -> None:
    advice = assert_bounded(found(), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.47, 0.6), abs=0.01)
    assert "148 of 150 gradients" in advice.because
    assert "requires_grad_(False)" in advice.fix


def test_gradients_pass_through_what_is_not_trained() -> None:
    advice = assert_bounded(found(**THROUGH), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0, 0.3), abs=0.01)


def test_later_layers_may_be_a_part_of_their_own_or_a_copy_of_the_model() -> None:
    later = assert_bounded(found(**THROUGH, added_first=True), STEP)
    gain = STEP.gain(later.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0, 0.6), abs=0.01)
    copied = assert_bounded(found(fresh_first=False, added_first=True, of_a_copy=True), STEP)
    gain = STEP.gain(copied.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.47, 0.6), abs=0.01)
    assert "reference.requires_grad_(False)" in copied.fix


SHARED: dict[str, Any] = {
    "fresh_first": False,
    "added_first": True,
    "uses": 2,
    "host_ns": 40 * MS,
    "device_ns": 50 * MS,
    "ended_host_ns": 20 * MS,
    "ended_device_ns": 26 * MS,
    "before_host_ns": 8 * MS,
    "before_device_ns": 16 * MS,
}


def test_a_perceptual_loss_goes_for_the_target_and_in_part_for_the_prediction() -> None:
    advice = assert_bounded(found(**SHARED), STEP)
    gain = STEP.gain(advice.saving)
    # Of 10 ms: nine tenths of the target's 2.6 ms at least; at most all of it, half of the 2.4 ms of the
    # prediction and half of the 1.6 ms of the loss, which has a gradient for both.
    assert (gain.low_share, gain.high_share) == pytest.approx((0.9 * 0.26, 0.26 + 0.12 + 0.08), abs=0.01)
    assert "used 2 times in the pass, and nothing else needs a gradient behind 1 of" in advice.because
    assert advice.fix.startswith("features.requires_grad_(False)")


def test_of_several_uses_it_may_not_be_known_which_go() -> None:
    advice = assert_bounded(found(**SHARED | {"ended": 0, "ended_host_ns": 0, "ended_device_ns": 0}), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.0, 0.5), abs=0.01)
    every: dict[str, Any] = {"fresh_first": True, "uses": 3, "ended": 3}
    assert STEP.gain(assert_bounded(found(**every), STEP).saving) == STEP.gain(
        assert_bounded(found(), STEP).saving
    )


def test_it_is_silent() -> None:
    classes = drawn(StepClass, {"steps": 10, "backward_passes": 1, "optimizer": True})
    assert unused_gradients(STEP, classes, drawn(SummedGradients)) is None
    assert found(fresh=0) is None, "gradients are filled with zeros, not dropped"
    assert found(backward_passes=2) is None, "the second pass adds to the first"
    assert found(optimizer=False) is None, "they are used in a later step"
    assert found(steps=3) is None, "not in all steps"
    small: dict[str, Any] = {
        "host_ns": MS,
        "device_ns": 2 * MS,
        "ended_host_ns": MS,
        "ended_device_ns": 2 * MS,
    }
    assert found(**small) is None, "next to nothing"


SECOND = {"backward_pass": 2, "steps": 10, "fresh": 1480, "added": 0}


def test_gradients_that_are_cleared_before_an_optimizer_uses_them() -> None:
    advice = assert_bounded(found(2, after=SECOND), STEP)
    assert "Backward pass 1 of each step adds to 148 gradients" in advice.because
    assert "fake.detach()" in advice.fix


def test_the_next_pass_may_add_to_what_the_first_kept() -> None:
    """As in the usual training of a generator and a critic, but for a missing detach()."""
    advice = assert_bounded(found(2, after=SECOND | {"added": 20}), STEP)
    assert "Backward pass 1 of each step adds to 148 gradients" in advice.because
    same: dict[str, Any] = {"added": 740, "fresh": 740}
    assert found(2, after=SECOND | same, **same) is None, "which are which is not known"


@pytest.mark.parametrize(
    "other",
    [{"fresh": 1000}, {"added": 5}, {"backward_pass": 3}],
)
def test_passes_that_go_on_with_what_was_added(other: dict[str, int]) -> None:
    assert found(2, after=SECOND | other) is None
    assert found(2) is None
