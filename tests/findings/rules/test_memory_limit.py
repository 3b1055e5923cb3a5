from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import H200, assert_bounded, drawn, facts, mean_step

from stepscope.analyses.memory import DeviceMemory
from stepscope.findings import NotKnown
from stepscope.findings.rules.memory_limit import memory_limit
from stepscope.tables import Table

ALL = H200.memory_bytes or 0
FAILED = "Requests for memory that failed: 2, the largest for 1048576 bytes."


def memory(peak: float, reserved: float, notes: tuple[str, ...] = (), **told: Any) -> Table[DeviceMemory]:
    row = {
        "device": "0",
        "peak_bytes": int(peak * ALL),
        "reserved_peak_bytes": int(reserved * ALL),
        "unused_at_peak_bytes": int((reserved - peak) * ALL),
    }
    return drawn(DeviceMemory, {**row, **told}, notes=notes)


def test_full_of_tensors_is_a_risk() -> None:
    advice = assert_bounded(memory_limit(facts(), memory(0.985, 0.99)), mean_step())
    assert advice.risk
    assert advice.certainty == "likely"
    assert advice.title == "Memory may run out"
    assert advice.fix.startswith("batch_size")
    assert "empty_cache" not in advice.fix
    assert advice.evidence["peak_share"] == pytest.approx(0.985)


def test_full_of_cached_blocks_is_told_and_no_risk() -> None:
    advice = assert_bounded(memory_limit(facts(), memory(0.80, 0.97)), mean_step())
    assert not advice.risk
    assert advice.title == "Memory is nearly full"
    assert advice.fix.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_a_request_that_failed_is_a_risk_whatever_the_peak() -> None:
    advice = assert_bounded(memory_limit(facts(), memory(0.60, 0.70, (FAILED,))), mean_step())
    assert advice.risk
    assert FAILED in advice.because


def test_it_is_silent_below_the_limit_which_is_a_threshold() -> None:
    assert memory_limit(facts(), memory(0.85, 0.94)) is None
    assert memory_limit(facts(), memory(0.85, 0.94), high_share=0.9) is not None
    advice = assert_bounded(memory_limit(facts(), memory(0.96, 0.97), risk_share=0.95), mean_step())
    assert advice.risk


def test_it_does_not_know_without_memory_events() -> None:
    with pytest.raises(NotKnown) as found:
        memory_limit(facts(memory=False), drawn(DeviceMemory))
    assert found.value.record == "profile_memory=True"
    assert memory_limit(facts(memory=False, device_work=False), drawn(DeviceMemory)) is None
