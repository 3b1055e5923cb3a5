from __future__ import annotations

from tests.findings.allocators import GIB, MIB, NONE, allocator
from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.allocator_holders import AllocatorHolder
from stepscope.findings.rules.large_workspaces import large_workspaces
from stepscope.tables import Table


class TestLargeWorkspaces:
    def held(self, size: int) -> Table[AllocatorHolder]:
        return drawn(AllocatorHolder, {"device": 0, "category": "workspaces", "blocks": 8, "bytes": size})

    def test_it_counts_them(self) -> None:
        advice = assert_bounded(large_workspaces(allocator(), self.held(GIB)), mean_step())
        assert advice.evidence["workspaces"] == 8

    def test_silent(self) -> None:
        assert large_workspaces(allocator(), self.held(100 * MIB)) is None
        assert large_workspaces(NONE, drawn(AllocatorHolder)) is None
