from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.encoder_reruns import EncoderReruns
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.recomputed_encoder import recomputed_encoder

# The host sets the pace of a step of 10 ms, as it is nearly everywhere where one token is made after another.
STEP = mean_step(busy_ns=2.0 * MS, starved_ns=8.0 * MS, latency_ns=0.0, host_path_share=1.0)
RUN = {
    "user_frame": "serve.py(7): encode", "reruns": 15, "passes": 16, "first_length": 1, "last_length": 16,
    "ops": 9, "first_ops": "aten::linear, aten::relu", "host_ns": 4 * MS, "device_ns": MS,
}  # fmt: skip


def found(*runs: dict[str, Any], step: MeanStep = STEP) -> Advice | None:
    return recomputed_encoder(step, drawn(EncoderReruns, *runs))


def test_all_but_one_of_its_passes_go() -> None:
    # A run in each of ten steps.
    advice = assert_bounded(found(*[RUN] * 10), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.4, 1.3 * 0.4), abs=0.01)
    assert "160 forward passes follow one another in 10 runs" in advice.because
    assert "as from 1 to 16. Each pass also runs 9 operators" in advice.because
    assert "would save 15 encoder calls a step, with 4.00 ms of host time and 1.00 ms" in advice.because
    assert advice.fix.startswith("memory = model.encode(source)")
    assert "encoder_outputs=encoder_outputs" in advice.fix
    assert [(place.line, place.note) for place in advice.locations] == [(7, "15 reruns a step")]
    assert advice.evidence["reruns_per_step"] == 15


def test_it_promises_no_more_than_there_is() -> None:
    assert_bounded(found(*[RUN | {"host_ns": 20 * MS, "device_ns": 9 * MS}] * 10), STEP)
    # Where the GPU sets the pace, what it works less is all that is gained.
    slow = busy_pace()
    advice = assert_bounded(found(*[RUN | {"host_ns": MS // 10, "device_ns": 3 * MS}] * 10, step=slow), slow)
    gain = slow.gain(advice.saving)
    assert gain.low_ns <= gain.high_ns <= 3.2 * MS


def test_it_is_silent_where_little_goes() -> None:
    assert found() is None
    assert found(RUN | {"host_ns": MS, "device_ns": 0}) is None
