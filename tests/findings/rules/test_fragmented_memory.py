from __future__ import annotations

from typing import Any

import pytest
from tests.findings.allocators import GIB, MIB, SITE
from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.allocator_pools import AllocatorPool
from stepscope.analyses.fragmented_segments import FragmentedSegment
from stepscope.findings.rules.fragmented_memory import fragmented_memory
from stepscope.tables import Table


class TestFragmentedMemory:
    def pools(self, **told: Any) -> Table[AllocatorPool]:
        row = {"device": 0, "reserved_bytes": 4 * GIB, "pinned_bytes": GIB, "pinned_page_bytes": 600 * MIB,
               "pinned_segments": 7, **told}  # fmt: skip
        return drawn(AllocatorPool, row)

    HELD = drawn(FragmentedSegment, {"device": 0, "site": SITE, "free_bytes": 100 * MIB})

    def test_it_states_what_cannot_be_given_back(self) -> None:
        advice = assert_bounded(fragmented_memory(self.pools(), self.HELD), mean_step())
        assert advice.evidence["pinned_bytes"] == GIB
        assert "600 MiB" in advice.because
        assert str(advice.locations[0]) == "/home/me/model.py:7 forward"

    @pytest.mark.parametrize("told", [{"pinned_bytes": 300 * MIB}, {"expandable": 1}, {"pinned_bytes": 0}])
    def test_it_is_silent(self, told: dict[str, Any]) -> None:
        assert fragmented_memory(self.pools(**told), self.HELD) is None

    def test_without_a_snapshot(self) -> None:
        assert fragmented_memory(drawn(AllocatorPool), drawn(FragmentedSegment)) is None
