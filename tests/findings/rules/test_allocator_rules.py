"""The rules on allocator snapshots: each fires, stays silent, and promises no time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import assert_bounded, drawn, facts, mean_step

from stepscope.analyses.allocation_failures import AllocationFailure
from stepscope.analyses.allocator_holders import AllocatorHolder
from stepscope.analyses.allocator_peaks import PeakHolder
from stepscope.analyses.allocator_pools import AllocatorPool
from stepscope.analyses.allocator_steps import AllocatorStep
from stepscope.analyses.allocators import Allocator
from stepscope.analyses.fragmented_segments import FragmentedSegment
from stepscope.analyses.phases import Phase
from stepscope.findings import NotKnown
from stepscope.findings.rules.failed_allocation import failed_allocation
from stepscope.findings.rules.fragmented_memory import fragmented_memory
from stepscope.findings.rules.large_activations import large_activations
from stepscope.findings.rules.large_optimizer_state import large_optimizer_state
from stepscope.findings.rules.large_workspaces import large_workspaces
from stepscope.findings.rules.retained_graph import retained_graph
from stepscope.tables import Table

MIB, GIB = 1 << 20, 1 << 30
SITE = "/home/me/model.py(7): forward"


def allocator(**told: Any) -> Table[Allocator]:
    row = {
        "device": 0,
        "peak_bytes": 10 * GIB,
        "active_bytes": 8 * GIB,
        "reserved_peak_bytes": 140 * GIB,
        **told,
    }
    return drawn(Allocator, row)


NONE = drawn(Allocator)
NO_HISTORY = allocator(peak_bytes=None)


def growing(
    *, site: str | None = SITE, phase: str = "forward", grown: int = 4 * MIB, steps: int = 5
) -> Table[AllocatorStep]:
    rows = [
        {"device": 0, "step": n, "growth_bytes": grown, "end_bytes": n * grown, "kept_site": site,
         "kept_phase": phase, "kept_site_bytes": 3 * MIB}
        for n in range(steps)
    ]  # fmt: skip
    return drawn(AllocatorStep, *rows)


class TestRetainedGraph:
    def test_it_names_the_line(self) -> None:
        advice = assert_bounded(retained_graph(allocator(), growing()), mean_step())
        assert advice.risk
        assert advice.evidence["growth_per_step_bytes"] == 4 * MIB
        assert [str(place) for place in advice.locations] == ["/home/me/model.py:7 forward"]

    @pytest.mark.parametrize(
        "told", [{"phase": "other"}, {"grown": 0}, {"grown": 1000}, {"site": None}, {"steps": 3}]
    )
    def test_it_is_silent(self, told: dict[str, Any]) -> None:
        assert retained_graph(allocator(), growing(**told)) is None

    def test_without_a_snapshot_or_a_history(self) -> None:
        assert retained_graph(NONE, drawn(AllocatorStep)) is None
        with pytest.raises(NotKnown, match="history"):
            retained_graph(NO_HISTORY, drawn(AllocatorStep))


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

    def test_without_a_history(self) -> None:
        advice = failed_allocation(self.failure(active_bytes=None, unused_bytes=None, device_free_bytes=None))
        assert advice is not None
        assert advice.because == "1.00 GiB was asked for on device 0."

    def test_none(self) -> None:
        assert failed_allocation(drawn(AllocationFailure)) is None


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


class TestLargeWorkspaces:
    def held(self, size: int) -> Table[AllocatorHolder]:
        return drawn(AllocatorHolder, {"device": 0, "category": "workspaces", "blocks": 8, "bytes": size})

    def test_it_counts_them(self) -> None:
        advice = assert_bounded(large_workspaces(allocator(), self.held(GIB)), mean_step())
        assert advice.evidence["workspaces"] == 8

    def test_silent(self) -> None:
        assert large_workspaces(allocator(), self.held(100 * MIB)) is None
        assert large_workspaces(NONE, drawn(AllocatorHolder)) is None
