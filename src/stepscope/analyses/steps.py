"""How long each step took, and what for."""

from __future__ import annotations

from typing import Annotated, Literal

from stepscope.analyses import analysis
from stepscope.analyses._parts import PART_READS, PARTS, parts_of
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Step", "steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step, each instant of it in exactly one part."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number in the mark; where nothing marks steps, counted from 0."]
    name: Annotated[str | None, "Name of the mark, or of the range that a step was found by."]
    start_ns: Annotated[int, "When the step began: its mark, and all device work launched before it done."]
    dur_ns: Annotated[int, "How long it took, until the device work launched in its mark was done."]
    mark_ns: Annotated[int, "Length of the mark on the host; the host may run ahead of the step."]
    kernel_ns: Annotated[int, "Time in which a kernel computed, on any device of the rank."]
    memcpy_ns: Annotated[int, "Time in which a copy ran, and none of the above."]
    memset_ns: Annotated[int, "Time in which a fill ran, and none of the above."]
    communication_ns: Annotated[int, "Time in which a collective ran, device or host, and none of the above."]
    runtime_ns: Annotated[int, "Time in which the host called the device's runtime, and none of the above."]
    dataloader_ns: Annotated[int, "Time in which the host waited for data, and none of the above."]
    cpu_ns: Annotated[int, "Time in which the host ran an operator, and none of the above."]
    other_ns: Annotated[int, "The rest: Python between operators, waiting, nothing recorded."]


_WINDOWS = """
    SELECT step, name, source, start_ns, end_ns, host_end_ns - host_start_ns AS mark_ns, thread
    FROM steps ORDER BY start_ns, end_ns, host_start_ns
"""


@analysis(
    reads={
        **PART_READS,
        "steps": ("step", "name", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "thread"),
    }
)
def steps(
    trace: Trace,
    *,
    by: Annotated[
        Literal["mark", "any"], "steps that the profiler marked, or for any also those found without marks"
    ] = "mark",
) -> Table[Step]:
    """Divides each step: kernels, copies, communication, runtime, data loading, operators, other."""
    windows = [window for window in trace.rows(_WINDOWS) if by == "any" or window["source"] == "mark"]
    rows = [
        Step(
            rank=trace.rank,
            step=window["step"],
            name=window["name"],
            start_ns=window["start_ns"],
            dur_ns=window["end_ns"] - window["start_ns"],
            mark_ns=window["mark_ns"],
            **{f"{part}_ns": time for part, time in zip((*PARTS, "other"), parts, strict=True)},
        )
        for window, parts in zip(windows, parts_of(trace, windows) if windows else [], strict=True)
    ]
    return Table.of(Step, rows, _notes(trace, by, found=bool(rows)))


def _notes(trace: Trace, by: str, *, found: bool) -> list[str]:
    if by == "any":
        nothing = [] if found else ["The profile holds no events with a time."]
        return nothing + how_steps_were_found(trace)
    if found:
        return []
    note = (
        "No step marks (ProfilerStep#k): call step() on the profiler after each step to have them. "
        "For steps found without marks: stepscope show steps TRACE --by any."
    )
    return [note]
