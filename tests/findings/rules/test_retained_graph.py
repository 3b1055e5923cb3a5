from __future__ import annotations

from typing import Any

import pytest
from tests.findings.allocators import MIB, NO_HISTORY, NONE, SITE, allocator
from tests.findings.drawn import assert_bounded, drawn, mean_step

from stepscope.analyses.allocator_steps import AllocatorStep
from stepscope.findings import NotKnown
from stepscope.findings.rules.retained_graph import retained_graph
from stepscope.tables import Table


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
