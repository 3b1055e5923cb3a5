"""Every distinct path of calls on the host, as a flame graph needs it."""

from __future__ import annotations

from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CallPath", "call_paths"]


@dataclass(frozen=True, slots=True)
class CallPath:
    """One path of calls on one thread; a parent comes before its children."""

    node: Annotated[int, "Number of the path."]
    parent: Annotated[int | None, "The path without its last call; NULL for a thread."]
    depth: Annotated[int, "How many calls are in it."]
    kind: Annotated[str, "What its last call is: thread, frame, range, op, call, or event."]
    name: Annotated[str | None, "Name of the last call; for a thread, its process and number."]
    calls: Annotated[int, "How often it was taken."]
    total_ns: Annotated[int, "Time in the last call and all it called: the width of its bar."]
    self_ns: Annotated[int, "Time in which the last call was the innermost."]
    device_ns: Annotated[int, "Device work launched by the last call and all it called."]
    phase: Annotated[str, "Phase of training."]


# The width of a bar is the sum of what is above it, not the calls' durations, which may cross.
_PATHS = """
    SELECT node, parent, depth,
           CASE stored_in WHEN 'python_frames' THEN 'frame' WHEN 'annotations' THEN 'range'
                          WHEN 'ops' THEN 'op' WHEN 'launches' THEN 'call' WHEN 'other_events' THEN 'event'
                          ELSE 'thread' END AS kind,
           CASE WHEN parent IS NULL THEN concat(pid, ' / ', tid) ELSE name END AS name,
           calls, inclusive_ns AS total_ns, self_ns, launched_ns AS device_ns, phase
    FROM call_tree
    WHERE CASE WHEN parent IS NULL THEN node IN (SELECT parent FROM call_tree)
               ELSE inclusive_ns + launched_ns >= $least END
    ORDER BY node
"""


@analysis(
    reads={
        "call_tree": (
            "node", "parent", "depth", "stored_in", "pid", "tid", "name", "calls", "inclusive_ns", "self_ns",
            "launched_ns", "phase",
        )
    }
)  # fmt: skip
def call_paths(
    trace: Trace, *, least_ns: Annotated[int, "leave out paths with less host and device time than this"] = 0
) -> Table[CallPath]:
    """Lists every distinct path of host calls with its time: the data of a flame graph.

    The whole trace counts. Step marks are not part of a path, and ranges that differ only in a number are one
    where there are many.
    """
    notes = [f"Paths below {units.duration(least_ns)} are left out."] if least_ns else []
    found = trace.query(CallPath, _PATHS, least=least_ns)
    if not len(found):
        notes.append("The profile holds no host events.")
    return Table(CallPath, found.arrow, notes)
