from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.rules.checked_distributions import checked_distributions

# The host alone takes the whole step of 10 ms, the GPU 1 ms of it.
STEP = mean_step(
    busy_ns=1.0 * MS, starved_ns=8.0 * MS, latency_ns=1.0 * MS, waiting_ns=0.0, host_path_share=1.0
)


def op(name: str, calls: int, host_ms: int, within: str | None = None) -> dict[str, Any]:
    """Calls in ten steps."""
    return {"name": name, "calls": calls, "launches": calls, "host_ns": host_ms * MS, "within": within,
            "user_frame": "play.py(3): act"}  # fmt: skip


TESTS, NETWORK = op("aten::_is_all_true", 900, 6), op("aten::linear", 900, 72)


def found(*ops: dict[str, Any]) -> Advice | None:
    return checked_distributions(STEP, drawn(StepOp, *ops))


def test_a_check_is_a_comparison_a_test_and_a_read() -> None:
    ops = TESTS, op("aten::is_nonzero", 900, 6), op("aten::gt", 300, 2), op("aten::eq", 600, 4), NETWORK
    advice = assert_bounded(found(*ops), STEP)
    assert advice.evidence["checks_per_step"] == 90
    assert advice.evidence["host_part"] == pytest.approx(18 / 90)
    gain = STEP.gain(advice.saving)
    assert (gain.low_share, gain.high_share) == pytest.approx((0.17, 0.3), abs=0.01)
    assert "set_default_validate_args(False)" in advice.fix
    assert [str(place) for place in advice.locations] == ["play.py:3 act"]


def test_other_comparisons_and_reads_stay() -> None:
    advice = assert_bounded(
        found(TESTS, op("aten::is_nonzero", 1800, 12), op("aten::eq", 3600, 24), NETWORK), STEP
    )
    assert advice.evidence["host_part"] == pytest.approx((6 + 6 + 6) / (6 + 12 + 24 + 72))


def test_it_is_silent() -> None:
    assert found(NETWORK, op("aten::is_nonzero", 900, 6)) is None
    assert found(op("aten::_is_all_true", 900, 6, within="aten::all"), NETWORK) is None
    assert found({**TESTS, "host_ns": MS // 2}, NETWORK) is None, "next to nothing"
