from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, changed, drawn, facts, mean_step

from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.explicit_syncs import explicit_syncs

SYNC = {"call": "cudaDeviceSynchronize", "user_frame": "train.py(7): step", "calls": 30,
        "waited_ns": 20 * MS, "starved_ns": 8 * MS}  # fmt: skip


def advised(
    *syncs: dict[str, Any],
    step: MeanStep | None = None,
    stacks: bool = True,
    gain: tuple[float, float] = (0.2, 0.25),
    **thresholds: float,
) -> Advice | None:
    return explicit_syncs(
        step or mean_step(),
        facts(stacks=stacks),
        drawn(HostSync, *syncs),
        drawn(StepOp),
        changed(*gain),
        **thresholds,
    )


def shares(advice: Advice | None, step: MeanStep) -> tuple[float, float]:
    gain = step.gain(assert_bounded(advice, step).saving)
    return gain.low_share, gain.high_share


def test_it_fires_and_the_gain_is_what_a_replay_without_these_waits_says() -> None:
    advice = assert_bounded(advised(SYNC), mean_step())
    assert shares(advice, mean_step()) == pytest.approx((0.85 * 0.2, 1.2 * 0.25))
    assert advice.evidence["waits_per_step"] == 3
    assert "torch.cuda.synchronize()" in advice.fix
    assert [str(place) for place in advice.locations] == ["train.py:7 step"]


def test_events_and_streams_are_named_as_a_program_writes_them() -> None:
    stream, event = ({**SYNC, "call": f"cuda{what}Synchronize"} for what in ("Stream", "Event"))
    assert (
        "stream.synchronize() and event.synchronize()"
        in assert_bounded(advised(stream, event), mean_step()).fix
    )


def test_it_is_silent_for_other_waits() -> None:
    assert advised() is None
    assert advised({**SYNC, "op": "aten::nonzero"}) is None
    assert advised({**SYNC, "call": "cudaFree"}) is None


def test_waits_of_a_library_are_known_by_stacks() -> None:
    library = {**SYNC, "user_frame": None}
    assert advised(library) is None
    advice = assert_bounded(advised(library, stacks=False), mean_step())
    assert "with_stack=True" in advice.because
    assert advised({**library, "starved_ns": 0}, stacks=False) is None


def test_one_wait_in_many_steps_is_none_of_the_loop() -> None:
    assert advised({**SYNC, "calls": 1}, step=mean_step(steps=11)) is None
    assert advised({**SYNC, "calls": 1}, step=mean_step(steps=10)) is not None


def test_it_is_silent_where_nothing_is_lost() -> None:
    assert advised(SYNC, gain=(0.0, 0.005)) is None
    assert advised(SYNC, step=mean_step(device=None)) is None
    assert advised(SYNC, least_share=0.5) is None
    assert advised(SYNC, least_share=0.1) is not None
