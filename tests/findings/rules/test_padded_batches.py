from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.attention import Attention
from stepscope.analyses.copies import Copy
from stepscope.analyses.launch_patterns import LaunchPattern
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.padded_batches import padded_batches

STEP = busy_pace()
MASKED = {"backend": "cudnn", "mask": "some", "query_length": 512, "key_length": 512}
WHOLE = {"steps": 4, "first_step": 2, "kernels": 626}
LOOK_UP = {"name": "aten::embedding", "phase": "forward"}
OPTIMIZER = {"phase": "optimizer", "device_ns": 20 * MS}  # 2 of the 9 ms of a step


def found(
    *attention: dict[str, Any],
    patterns: tuple[dict[str, Any], ...] = (WHOLE,),
    look_up: dict[str, Any] = LOOK_UP,
    more: tuple[dict[str, Any], ...] = (),
    sent: int = 0,
    **thresholds: float,
) -> Advice | None:
    return padded_batches(
        STEP,
        drawn(Attention, *attention),
        drawn(LaunchPattern, *patterns),
        drawn(StepOp, look_up, *more),
        drawn(StarvingPhase, OPTIMIZER),
        drawn(Copy, {"direction": "HtoD", "calls": 10 * sent}),
        **thresholds,
    )


def test_all_steps_have_one_length_and_a_mask() -> None:
    advice = assert_bounded(found(MASKED), STEP)
    assert advice.saving.device_ns == pytest.approx((0.0, 0.75 * (STEP.busy_ns - 2 * MS)))
    assert "All 4 recorded steps" in advice.because
    assert "a mask for each sequence of 512 tokens. If" in advice.because
    assert 'padding="longest"' in advice.fix
    assert not STEP.gain(advice.saving).is_known, "how much is padding is not in a profile"


def test_without_shapes_the_length_is_not_known() -> None:
    unknown = MASKED | {"query_length": None, "key_length": None}
    compared = {"name": "aten::ne", "phase": "forward"}
    advice = assert_bounded(found(unknown, more=(compared,)), STEP)
    assert "gets a mask. If" in advice.because
    assert found(unknown | {"backend": "hand-written"}, more=(compared,)) is None, "it may be causal"


def test_without_shapes_a_mask_that_is_kept_may_be_causal() -> None:
    unknown = MASKED | {"query_length": None, "key_length": None}
    assert found(unknown, sent=1) is None
    assert found(unknown, more=({"name": "aten::ne", "phase": "optimizer"},)) is None
    assert found(unknown, sent=2), "ids, and their mask"
    trained = {"name": "autograd::engine::evaluate_function: MmBackward0", "phase": "backward"}
    assert found(unknown, sent=2, more=(trained,)) is None, "ids, and the labels of a training"
    assert found(unknown, sent=3, more=(trained,)), "with a mask"


def test_a_mask_of_a_decoder_that_is_written_out_may_be_causal() -> None:
    written = MASKED | {"backend": "math"}
    assert found(written) is not None
    assert found(written, more=({"name": "aten::le", "phase": "forward"},)) is None
    assert found(MASKED, more=({"name": "aten::le", "phase": "forward"},)) is not None


@pytest.mark.parametrize("mask", ["none", "shared", "causal", None])
def test_no_mask_or_one_for_all_is_no_padding(mask: str | None) -> None:
    assert found(MASKED | {"mask": mask}) is None


def test_it_is_silent() -> None:
    assert found() is None
    assert found(MASKED, patterns=(WHOLE, WHOLE)) is None, "steps have inputs of different sizes"
    assert found(MASKED, patterns=({**WHOLE, "steps": 1},)) is None, "one step tells nothing"
    assert found(MASKED, look_up={"name": "aten::conv2d", "phase": "forward"}) is None, "pictures"
    assert found(MASKED | {"query_length": 32, "key_length": 32}) is None, "short"
    assert found(MASKED, least_share=0.9) is None
