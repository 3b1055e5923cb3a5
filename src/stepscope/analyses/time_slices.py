"""What the time went to, slice by slice, from the first step to the last."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._parts import PART_READS, PARTS, parts_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["TimeSlice", "time_slices"]


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A slice of time, divided like a step."""

    start_ns: Annotated[int, "When it began."]
    dur_ns: Annotated[int, "How long it is: as long as the others, up to rounding."]
    kernel_ns: Annotated[int, "A kernel ran that does not communicate."]
    memcpy_ns: Annotated[int, "A copy ran, and none of the above."]
    memset_ns: Annotated[int, "A fill ran, and none of the above."]
    communication_ns: Annotated[int, "Communication ran, and none of the above."]
    runtime_ns: Annotated[int, "The host was in a call of the runtime, and none of the above."]
    dataloader_ns: Annotated[int, "The host waited for data, and none of the above."]
    cpu_ns: Annotated[int, "The host was in an operator, and none of the above."]
    other_ns: Annotated[int, "The rest."]
    utilization_share: Annotated[float, "Part of the slice in which a kernel ran that does not communicate."]


_SPAN = "SELECT min(start_ns) AS since, max(end_ns) AS until FROM steps"
_THREADS = "SELECT DISTINCT thread FROM steps WHERE thread IS NOT NULL ORDER BY thread LIMIT 1"


@analysis(reads={**PART_READS, "steps": ("start_ns", "end_ns", "thread")})
def time_slices(
    trace: Trace,
    *,
    slices: Annotated[int, "How many slices, from 1 to 10,000."] = 200,
) -> Table[TimeSlice]:
    """Divides the time from the first step to the last into slices, each by what it was spent on.

    Each instant belongs to the first column that applies, as in `steps`: the columns sum to the slice.
    """
    (span,) = trace.rows(_SPAN)
    since, until = span["since"], span["until"]
    if since is None or until <= since:
        return Table.of(TimeSlice, [], ["The profile holds no steps of any length."])
    count = max(1, min(slices, 10_000, until - since))
    cuts = [since + (until - since) * place // count for place in range(count + 1)]
    threads = [row["thread"] for row in trace.rows(_THREADS)]
    windows: list[dict[str, Any]] = [
        {"start_ns": start, "end_ns": end, "thread": threads[0] if threads else None}
        for start, end in pairwise(cuts)
    ]
    rows = [
        TimeSlice(
            start_ns=window["start_ns"],
            dur_ns=window["end_ns"] - window["start_ns"],
            **{f"{part}_ns": time for part, time in zip((*PARTS, "other"), times, strict=True)},
            utilization_share=times[0] / (window["end_ns"] - window["start_ns"]),
        )
        for window, times in zip(windows, parts_of(trace, windows), strict=True)
    ]
    return Table.of(TimeSlice, rows)
