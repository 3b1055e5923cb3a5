"""Time on the devices inside the steps, divided among what ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope import _native
from stepscope.analyses._windows import how_steps_were_found, windows_of_steps
from stepscope.records import dataclass
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Trace

__all__ = [
    "HASHES_NUMBERED",
    "STEPS",
    "Spent",
    "Windows",
    "spent_by_group",
    "step_windows",
    "time_inside",
    "whole_span",
]

STEPS = ("start_ns", "end_ns", "source")
"""What of the steps an analysis of them reads."""

NUMBERED = "(SELECT unnest($groups::VARCHAR[]) AS grouped, unnest($numbers::BIGINT[]) AS number)"
"""SQL of a table that gives texts a number: both are parameters, lists of one length."""
HASHES_NUMBERED = NUMBERED.replace("VARCHAR", "BIGINT")
"""The same for hashes of texts, which are compared much faster."""

_SPAN = "SELECT min(start_ns) AS start_ns, max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM device_work"
_DEVICES = "SELECT DISTINCT device_name FROM device_work ORDER BY device_name"


@dataclass(frozen=True, slots=True)
class Windows:
    """Stretches of time, disjoint and in order."""

    starts: list[int]
    ends: list[int]
    notes: tuple[str, ...] = ()
    """How they were found, where no mark says it."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What the work of one group took of the windows."""

    calls: int
    """Pieces of work that ran there, in part at least."""
    total_ns: int
    """Their summed time there."""
    exclusive_ns: int
    """The same with what ran at once sharing its time: over all groups, the time in which anything ran."""
    covered_ns: int
    """The part of the summed time in which work of no group ran beside it."""


def step_windows(trace: Trace) -> Windows:
    """The windows of the steps, however they were found."""
    rows = windows_of_steps(trace)
    notes = tuple(how_steps_were_found(trace))
    return Windows([row["start_ns"] for row in rows], [row["end_ns"] for row in rows], notes)


def whole_span(trace: Trace) -> Windows:
    """From the first start to the last end of all device work."""
    (span,) = trace.once("span of device work", lambda: trace.rows(_SPAN))
    return Windows([], []) if span["start_ns"] is None else Windows([span["start_ns"]], [span["end_ns"]])


def spent_by_group(
    trace: Trace, sql: str, groups: Mapping[str, int] | Mapping[int, int], windows: Windows, **asked: Any
) -> list[Spent]:
    """Time on all devices by the number of a group.

    The query has the columns device_name, start_ns, dur_ns and grouped: a text, or the hash of one, that
    `groups` gives a number, from 0 on; work of another group, or of none, only runs beside the others. What
    began first is decided by length and group, too, so that the order of events in the file never matters.
    `asked` are its parameters.
    """
    numbers = max(groups.values(), default=-1) + 1
    sums = [[0, 0, 0, 0] for _ in range(numbers)]
    numbered = HASHES_NUMBERED if any(isinstance(group, int) for group in groups) else NUMBERED
    timed = f"""
        SELECT start_ns, dur_ns, coalesce(number, -1) AS number
        FROM ({sql}) LEFT JOIN {numbered} USING (grouped)
        WHERE device_name = $device ORDER BY start_ns, dur_ns DESC, number
    """
    params: dict[str, Any] = {**asked, "groups": list(groups), "numbers": list(groups.values())}
    for row in trace.once("devices with work", lambda: trace.rows(_DEVICES)) if numbers else ():
        device = row["device_name"]
        sweep = _native.ExclusiveSweep(windows.starts, windows.ends, numbers)
        for batch in trace.batches(timed, **params, device=device):
            sweep.push(*(view(batch[column]) for column in ("start_ns", "dur_ns", "number")))
        sweep.finish()
        figures = zip(sweep.calls, sweep.total_ns, sweep.exclusive_ns, sweep.covered_ns, strict=True)
        for total, more in zip(sums, figures, strict=True):
            total[:] = [had + new for had, new in zip(total, more, strict=True)]
    return [Spent(*figures) for figures in sums]


def time_inside(trace: Trace, sql: str, windows: Windows) -> int:
    """The summed time of work inside the windows; the query has start_ns and dur_ns, in any order."""
    import pyarrow.compute as pc

    inside = _native.HostTime(windows.starts, windows.ends).inside
    return sum(
        pc.sum(arrays([inside(view(batch["start_ns"]), view(batch["dur_ns"]))])[0]).as_py() or 0
        for batch in trace.batches(sql)
    )
