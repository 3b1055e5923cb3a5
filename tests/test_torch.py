"""A profile that torch records here and now, against what torch itself counts in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import stepscope
from stepscope.analyses.ops import ops

# torch counts an operator and the only one inside it once, if both have one name.
MERGED = """
    SELECT op.name, count(*) AS n
    FROM ops op JOIN ops parent ON parent.event = op.parent
    WHERE op.name = parent.name AND (SELECT count(*) FROM ops o WHERE o.parent = parent.event) = 1
    GROUP BY op.name
"""


def record(torch: Any, file: Path) -> dict[str, int]:
    """Runs a few small steps under the profiler; how often torch says each operator was called."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, record_shapes=True
    ) as profile:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            profile.step()
    profile.export_chrome_trace(str(file))
    return {row.key: row.count for row in profile.key_averages()}


def test_what_torch_records_now(torch: Any, tmp_path: Path) -> None:
    file = tmp_path / "now.json"
    counted = record(torch, file)
    trace = stepscope.open(file, store=tmp_path / "stores")
    assert trace.meta["damage"] == []
    found = {str(row.name): row.calls for row in ops(trace)}
    assert found["aten::linear"] == 6
    merged = {row["name"]: row["n"] for row in trace.arrow(MERGED).to_pylist()}
    assert {name: calls - merged.get(name, 0) for name, calls in found.items()} == {
        name: counted[name] for name in found
    }
    assert {name for name in counted if name.startswith("aten::")} <= set(found)
    frames = trace.arrow("SELECT count(*) AS n FROM host_tree WHERE name LIKE '%test_torch.py%: record'")
    assert frames["n"][0].as_py() >= 1
