"""Slices of time, divided like steps."""

from __future__ import annotations

from stepscope.cli.traces import DEMO
from stepscope.opening import open_trace


def test_slices_sum_to_the_span_and_parts_to_the_slices() -> None:
    trace = open_trace(str(DEMO))
    steps = list(trace.table("steps", by="any"))
    slices = list(trace.table("time_slices", slices=37))
    assert len(slices) == 37
    assert sum(one.dur_ns for one in slices) == slices[-1].start_ns + slices[-1].dur_ns - slices[0].start_ns
    assert slices[0].start_ns == min(step.start_ns for step in steps)
    parts = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other")
    for one in slices:
        assert sum(getattr(one, f"{part}_ns") for part in parts) == one.dur_ns
    for part in ("kernel", "memcpy"):
        assert sum(getattr(one, f"{part}_ns") for one in slices) >= sum(
            getattr(step, f"{part}_ns") for step in steps
        )
