from __future__ import annotations

from typing import Any

from tests.findings.allocators import GIB, MIB, SITE
from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.allocation_failures import AllocationFailure
from stepscope.findings.rules.failed_allocation import failed_allocation
from stepscope.tables import Table


class TestFailedAllocation:
    def failure(self, **told: Any) -> Table[AllocationFailure]:
        row = {"device": 0, "nth": 9, "asked_bytes": GIB, "device_free_bytes": 5 * MIB, "holder_rank": 1,
               "active_bytes": 70 * GIB, "unused_bytes": 2 * GIB, "holder_category": "activations",
               "holder_site": SITE, "holder_bytes": 60 * GIB, **told}  # fmt: skip
        return drawn(AllocationFailure, row)

    def test_fragments_come_first_if_they_would_have_been_enough(self) -> None:
        advice = assert_bounded(failed_allocation(self.failure()), mean_step())
        assert "too small" in advice.because
        assert "expandable_segments" in advice.fix.splitlines()[0]
        assert advice.risk
        assert advice.locations[0].note == "held 60.0 GiB: activations"

    def test_else_a_smaller_batch_does(self) -> None:
        advice = assert_bounded(failed_allocation(self.failure(unused_bytes=MIB)), mean_step())
        assert "batch_size" in advice.fix.splitlines()[0]

    def test_a_device_with_room_was_not_full(self) -> None:
        advice = failed_allocation(self.failure(asked_bytes=8 * MIB, device_free_bytes=131 * GIB))
        assert advice is not None
        assert "131 GiB was free: the device was not full" in advice.because
        assert "set_per_process_memory_fraction" in advice.fix.splitlines()[0]

    def test_a_segment_may_not_fit_where_a_block_would(self) -> None:
        advice = failed_allocation(self.failure(asked_bytes=MIB, device_free_bytes=15 * MIB))
        assert advice is not None
        assert "limit" not in advice.because

    def test_without_a_history(self) -> None:
        advice = failed_allocation(self.failure(active_bytes=None, unused_bytes=None, device_free_bytes=None))
        assert advice is not None
        assert advice.because == "1.00 GiB was asked for on device 0."

    def test_none(self) -> None:
        assert failed_allocation(drawn(AllocationFailure)) is None
