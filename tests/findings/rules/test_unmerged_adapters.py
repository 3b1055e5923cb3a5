from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.adapters import Adapters
from stepscope.findings import Advice
from stepscope.findings.rules.unmerged_adapters import unmerged_adapters

# The host sets the pace of a step of 10 ms.
STEP = mean_step(busy_ns=1.0 * MS, starved_ns=9.0 * MS, latency_ns=0.0, host_path_share=1.0)
LORA = {"user_frame": "serve.py(7): answer", "calls": 1_000, "rank": 16, "host_ns": 30 * MS, "device_ns": MS}


def found(**changed: Any) -> Advice | None:
    return unmerged_adapters(STEP, drawn(Adapters, LORA | changed))


def test_their_part_of_the_step_goes() -> None:
    advice = assert_bounded(found(), STEP)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.85 * 0.3, 1.3 * 0.3), abs=0.01)
    assert "100 linear layers a step" in advice.because
    assert "(rank 16)" in advice.because
    assert "merge_and_unload" in advice.fix
    assert [place.line for place in advice.locations] == [7]


def test_the_rank_may_be_unknown() -> None:
    assert "rank" not in assert_bounded(found(rank=None), STEP).because.replace("low rank", "")


def test_it_is_silent_where_they_are_few_or_little() -> None:
    assert found(calls=70) is None
    assert found(host_ns=MS) is None
    assert unmerged_adapters(STEP, drawn(Adapters)) is None
