"""When a trace begins, without looking at all that is told of its events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.drawing import Drawing
from tests.samples import FEW, open_shared

from stepscope.opening import open_trace
from stepscope.store.cutting import first_start

_OF_ALL = "SELECT min(start_ns) AS first FROM events WHERE phase = 'X'"


@pytest.mark.parametrize("name", FEW)
def test_the_first_event_is_that_of_the_view_of_all(name: str, sample: Callable[[str], Path]) -> None:
    trace = open_shared(sample(name))
    assert trace.meta.base_ns + first_start(trace.reading(None)) == trace.rows(_OF_ALL)[0]["first"]


def test_a_trace_of_instants_begins_with_its_base_time(tmp_path: Path) -> None:
    path = Drawing().memory(5, 64).write(tmp_path / "instants.json")
    assert first_start(open_trace(str(path), store=tmp_path / "store").reading(None)) == 0
