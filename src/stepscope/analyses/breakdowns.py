"""How long each step took, marked or found, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._parts import PART_READS, PARTS, parts_of
from stepscope.analyses._windows import how_steps_were_found
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Breakdown", "breakdowns"]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One step, each instant of it in exactly one part."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number in the mark, or counted from 0."]
    start_ns: Annotated[int, "When the step began, host and device."]
    dur_ns: Annotated[int, "How long it took: the sum of the parts."]
    kernel_ns: Annotated[int, "Time in which a kernel computed, on any device of the rank."]
    memcpy_ns: Annotated[int, "Time in which a copy ran, and none of the above."]
    memset_ns: Annotated[int, "Time in which a fill ran, and none of the above."]
    communication_ns: Annotated[int, "Time in which a collective ran, device or host, and none of the above."]
    runtime_ns: Annotated[int, "Time in which the host called the device's runtime, and none of the above."]
    dataloader_ns: Annotated[int, "Time in which the host waited for data, and none of the above."]
    cpu_ns: Annotated[int, "Time in which the host ran an operator, and none of the above."]
    other_ns: Annotated[int, "The rest: Python between operators, waiting, nothing recorded."]


_WINDOWS = """
    SELECT step, start_ns, end_ns, thread FROM steps ORDER BY start_ns, end_ns, host_start_ns
"""


@analysis(
    reads={**PART_READS, "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "thread")},
)
def breakdowns(trace: Trace) -> Table[Breakdown]:
    """Divides each step, marked or found, like `steps`: kernels, copies, runtime, operators, other."""
    windows = trace.rows(_WINDOWS)
    rows = [
        Breakdown(
            rank=trace.rank,
            step=window["step"],
            start_ns=window["start_ns"],
            dur_ns=window["end_ns"] - window["start_ns"],
            **{f"{part}_ns": time for part, time in zip((*PARTS, "other"), parts, strict=True)},
        )
        for window, parts in zip(windows, parts_of(trace, windows), strict=True)
    ]
    nothing = [] if rows else ["The profile holds no events with a time."]
    return Table.of(Breakdown, rows, nothing + how_steps_were_found(trace))
