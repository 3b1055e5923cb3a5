from __future__ import annotations

from tests.findings.allocators import GIB, NO_HISTORY, NONE, SITE, allocator
from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.allocator_holders import AllocatorHolder
from stepscope.findings.rules.large_optimizer_state import large_optimizer_state
from stepscope.tables import Table


class TestLargeOptimizerState:
    def held(self, size: int) -> Table[AllocatorHolder]:
        return drawn(
            AllocatorHolder, {"device": 0, "category": "optimizer state", "site": SITE, "bytes": size}
        )

    def test_what_8_bits_save(self) -> None:
        advice = assert_bounded(large_optimizer_state(allocator(), self.held(4 * GIB)), mean_step())
        assert advice.evidence["saved_by_8_bits_bytes"] == 3 * GIB
        assert "at the peak" in advice.because
        advice = assert_bounded(large_optimizer_state(NO_HISTORY, self.held(4 * GIB)), mean_step())
        assert "at the end" in advice.because

    def test_silent(self) -> None:
        assert large_optimizer_state(allocator(), self.held(2 * GIB)) is None
        assert large_optimizer_state(NONE, drawn(AllocatorHolder)) is None
