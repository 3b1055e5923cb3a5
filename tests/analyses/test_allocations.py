"""Memory asked of the driver and of the allocator once a program has settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.drawing import Drawing
from tests.oracle import Oracle
from tests.samples import open_shared

from stepscope.analyses.allocations import Allocation, allocations
from stepscope.opening import open_trace
from stepscope.tables import Table


def table(drawing: Drawing, tmp_path: Path) -> Table[Allocation]:
    return allocations(open_trace(drawing.write(tmp_path / "a.json"), store=tmp_path))


def three_steps() -> Drawing:
    """Three steps of 100. In each an operator asks the driver, for 10, and gives back, for 5."""
    drawing = Drawing()
    for step in range(3):
        at = 100 * step
        drawing.mark(step, at, 100).frame("train.py(3): step", at, 90).op("aten::empty", at + 10, 30)
        drawing.launch("cudaMalloc", at + 15, 10).launch("cudaFree", at + 60, 5)
        drawing.memory(at + 30, 512).memory(at + 70, -512)
    return drawing


def test_the_first_step_does_not_count(tmp_path: Path) -> None:
    found = table(three_steps(), tmp_path)
    malloc, free, inside, outside = found
    assert (malloc.source, malloc.call, malloc.op) == ("driver", "cudaMalloc", "aten::empty")
    assert (malloc.allocations, malloc.frees, malloc.per_step, malloc.host_ns) == (2, 0, 1, 20_000)
    assert malloc.host_share == 20 / 200
    assert malloc.allocated_bytes is None
    assert (free.call, free.op, free.allocations, free.frees, free.host_ns) == (
        "cudaFree",
        None,
        0,
        2,
        10_000,
    )
    assert (inside.source, inside.device, inside.op) == ("allocator", "0", "aten::empty")
    assert (inside.allocations, inside.frees, inside.allocated_bytes, inside.freed_bytes) == (2, 0, 1024, 0)
    assert (outside.op, outside.allocations, outside.frees, outside.freed_bytes) == (None, 0, 2, 1024)
    assert {row.user_frame for row in found} == {"train.py(3): step"}
    assert (inside.host_ns, inside.host_share, inside.call) == (None, None, None)
    assert found.notes == ("Window: the marks of 2 steps, all but the first.",)


def test_the_only_step_counts(tmp_path: Path) -> None:
    found = table(Drawing().mark(1, 0, 100).launch("hipMalloc", 10, 5).launch("hipMalloc", 200, 5), tmp_path)
    assert [(row.call, row.allocations, row.host_ns) for row in found] == [("hipMalloc", 1, 5000)]
    assert found.notes[0] == "No events of torch's allocator: record with profile_memory=True."
    assert found.notes[1].startswith("Window: the only step")


def test_nothing_in_steady_state(tmp_path: Path) -> None:
    found = table(Drawing().mark(1, 0, 10).launch("cudaMalloc", 1, 2).mark(2, 10, 10), tmp_path)
    assert len(found) == 0
    assert found.notes[0] == "No call of the driver asked for memory or gave it back in these steps."


def test_an_operator_with_frames_inside(tmp_path: Path) -> None:
    # The operator is looked for through the frames inside it; the innermost one counts.
    drawing = Drawing().mark(1, 0, 100).op("outer", 10, 50).frame("a.py(1): hook", 15, 40).op("inner", 20, 5)
    drawing.memory(22, 64).memory(40, 128)
    found = [(row.op, row.allocated_bytes) for row in table(drawing, tmp_path)]
    assert sorted(found) == [("inner", 64), ("outer", 128)]


def test_host_memory(tmp_path: Path) -> None:
    event: dict[str, Any] = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
    event |= {
        "pid": 100,
        "tid": 1,
        "ts": 5,
        "args": {"Bytes": 8, "Device Type": 0, "Device Id": -1, "Addr": 1},
    }
    (row,) = table(Drawing().mark(1, 0, 100).add(event), tmp_path)
    assert (row.device, row.op, row.allocations, row.allocated_bytes) == ("cpu", None, 1, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200_mem_timeline.pt.trace.json.gz", "h200_slow_item.pt.trace.json.gz"])
def test_the_allocator_as_in_the_file(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    """What the allocator did in steps after the first, counted in the file."""
    path = sample(name)
    found = allocations(open_shared(path))
    oracle = Oracle.of(path)
    marks = [mark.span for mark, _, _ in oracle.windows][1:]
    allocated, freed = Counter[str](), Counter[str]()
    for event in oracle.events:
        if event.name != "[memory]" or not any(start <= event.start < end for start, end in marks):
            continue
        device = "cpu" if event.args["Device Type"] == 0 else str(event.args["Device Id"])
        allocated[device] += max(event.args["Bytes"], 0)
        freed[device] += max(-event.args["Bytes"], 0)
    assert allocated
    kept = [row for row in found if row.source == "allocator"]
    for sums, column in ((allocated, "allocated_bytes"), (freed, "freed_bytes")):
        counted = Counter[str]()
        for row in kept:
            counted[str(row.device)] += getattr(row, column)
        assert counted == sums
