"""Nodes of autograd, counted in profiles that torch itself recorded here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepscope.analyses.recorded_graphs import recorded_graphs
from stepscope.opening import open_trace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("gradients", ["on", "off", "of nothing"])
def test_a_node_for_each_operator_that_depends_on_a_weight(
    tmp_path: Path, torch: Any, gradients: str
) -> None:
    layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(5)])
    layers.requires_grad_(gradients != "of nothing")
    plan = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    with torch.set_grad_enabled(gradients != "off"), torch.profiler.profile(schedule=plan) as profiler:
        for _ in range(4):
            layers(torch.ones(2, 8)).relu()
            profiler.step()
    path = tmp_path / "a.pt.trace.json"
    profiler.export_chrome_trace(str(path))
    rows = list(recorded_graphs(open_trace(path, store=tmp_path / "store")))
    if gradients != "on":
        assert rows == []
        return
    (row,) = rows
    # A transposed weight and its product for each of five layers; the node of relu is the last.
    assert row.nodes == 10
    assert row.ops >= 6
