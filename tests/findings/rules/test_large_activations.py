from __future__ import annotations

import pytest
from tests.findings.allocators import GIB, NO_HISTORY, NONE, SITE, allocator
from tests.findings.drawn import assert_bounded, drawn, facts, mean_step

from stepscope.analyses.allocator_peaks import PeakHolder
from stepscope.analyses.phases import Phase
from stepscope.findings import NotKnown
from stepscope.findings.rules.large_activations import large_activations


class TestLargeActivations:
    PEAK = drawn(
        PeakHolder,
        {"device": 0, "category": "activations", "site": SITE, "bytes": 6 * GIB},
        {"device": 0, "category": "parameters", "bytes": 4 * GIB},
        {"device": 1, "category": "activations", "bytes": 50 * GIB},
    )

    def test_the_cost_is_known_with_a_trace_alone(self) -> None:
        rows = drawn(Phase, *({"step": n, "phase": "forward", "device_ns": 3_000_000} for n in range(2)))
        advice = assert_bounded(large_activations(facts(), allocator(), self.PEAK, rows), mean_step())
        assert advice.evidence["forward_device_ns"] == 3_000_000
        assert "3.00 ms" in advice.because
        advice = assert_bounded(large_activations(facts(), allocator(), self.PEAK, drawn(Phase)), mean_step())
        assert advice.evidence["forward_device_ns"] is None
        assert "does not say" in advice.because
        assert advice.evidence["activations_bytes"] == 6 * GIB

    def test_with_room_it_is_silent(self) -> None:
        roomy = allocator(reserved_peak_bytes=20 * GIB)
        assert large_activations(facts(), roomy, self.PEAK, drawn(Phase)) is None
        assert large_activations(facts(devices=()), roomy, self.PEAK, drawn(Phase)) is not None

    def test_few_activations(self) -> None:
        assert large_activations(facts(), allocator(peak_bytes=100 * GIB), self.PEAK, drawn(Phase)) is None

    def test_without_a_snapshot_or_a_history(self) -> None:
        assert large_activations(facts(), NONE, drawn(PeakHolder), drawn(Phase)) is None
        with pytest.raises(NotKnown):
            large_activations(facts(), NO_HISTORY, drawn(PeakHolder), drawn(Phase))
