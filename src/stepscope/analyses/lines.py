"""Which lines of the user's code cost time: on the host, on the device, and by letting the device wait."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import DRIVING, LAUNCHED, LAUNCHED_READS, PLACED, how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Line", "lines"]


@dataclass(frozen=True, slots=True)
class Line:
    """One function of the user's code, by the line of its definition."""

    file: Annotated[str | None, "File, as the profiler writes it; NULL for what is outside the user's code."]
    line: Annotated[int | None, "Line on which the function begins; profiles do not record lines inside it."]
    function: Annotated[str | None, "Name of the function."]
    host_ns: Annotated[
        int,
        "Time in it and in what it called outside the user's code, on threads that drive the steps.",
    ]
    host_share: Annotated[float | None, "Share of the host time of all rows; NULL without any."]
    idle_ns: Annotated[int, "Such time while a device was idle and waited for its launches."]
    device_ns: Annotated[int, "Device work that it launched in the steps, with the backward of it."]
    device_share: Annotated[float | None, "Share of the device work of all rows; NULL without any."]
    device_forward_ns: Annotated[int, "Of that: launched in forward."]
    device_backward_ns: Annotated[int, "Of that: launched in backward, recomputation included."]
    launches: Annotated[int, "Launches of device work."]


_FRAME = r"^(.+)\((\d+)\): (.+)$"
# Frames and ranges have their time in the tree; what is placed one by one has it there, for backward belongs
# to the frame of its forward.
_LINES = f"""
    WITH driving AS ({DRIVING}), placed AS ({PLACED}),
    spent AS (
        SELECT user_frame, sum(step_self_ns) AS host_ns, sum(starved_ns) AS idle_ns, 0 AS forward_ns,
               0 AS backward_ns, 0 AS device_ns, 0 AS launches
        FROM call_tree WHERE stored_in IN ('python_frames', 'annotations')
          AND thread IN (FROM driving) AND thread NOT IN (FROM placed) GROUP BY user_frame
        UNION ALL
        SELECT NULL, 0, sum(starved_ns), 0, 0, 0, 0 FROM call_tree
        WHERE parent IS NULL OR stored_in = 'other_events' AND thread NOT IN (FROM placed)
        UNION ALL
        SELECT p.user_frame, sum(p.step_self_ns), sum(p.starved_ns), 0, 0, 0, 0
        FROM call_sites p JOIN call_tree t ON t.node = p.node WHERE t.thread IN (FROM driving)
        GROUP BY p.user_frame
        UNION ALL
        SELECT user_frame, 0, 0, sum(ns) FILTER (phase = 'forward'),
               sum(ns) FILTER (phase IN ('backward', 'recomputation')), sum(ns), sum(launches)
        FROM ({LAUNCHED}) GROUP BY user_frame),
    named AS (SELECT t.name, s.* FROM spent s LEFT JOIN call_tree t ON t.node = s.user_frame),
    summed AS (
        SELECT name, sum(host_ns) AS host_ns, sum(idle_ns) AS idle_ns, sum(device_ns) AS device_ns,
               coalesce(sum(forward_ns), 0) AS forward_ns, coalesce(sum(backward_ns), 0) AS backward_ns,
               sum(launches) AS launches
        FROM named GROUP BY name)
    SELECT regexp_extract(name, '{_FRAME}', 1) AS file,
           TRY_CAST(regexp_extract(name, '{_FRAME}', 2) AS BIGINT) AS line,
           regexp_extract(name, '{_FRAME}', 3) AS function,
           host_ns::BIGINT AS host_ns, host_ns / nullif(sum(host_ns) OVER (), 0) AS host_share,
           idle_ns::BIGINT AS idle_ns, device_ns::BIGINT AS device_ns,
           device_ns / nullif(sum(device_ns) OVER (), 0) AS device_share,
           forward_ns::BIGINT AS device_forward_ns, backward_ns::BIGINT AS device_backward_ns,
           launches::BIGINT AS launches
    FROM summed WHERE host_ns + idle_ns + device_ns > 0
    ORDER BY idle_ns + device_ns DESC, host_ns DESC, name
"""


@analysis(
    reads={
        **LAUNCHED_READS,
        "call_tree": (
            "node", "parent", "thread", "stored_in", "name", "step_self_ns", "starved_ns", "user_frame",
            "phase",
        ),
        "call_sites": ("node", "step_self_ns", "starved_ns", *LAUNCHED_READS["call_sites"]),
        "launches": ("thread", *LAUNCHED_READS["launches"]),
        "ops": ("thread", "forward_thread"),
        "steps": ("source", "thread"),
    }
)  # fmt: skip
def lines(trace: Trace) -> Table[Line]:
    """Charges host time, device time and the device's waiting to functions of the user's own code.

    The user's own code is all functions outside torch, Python and the libraries that stepscope knows by
    name. If a stack has none, as in a server, the innermost function outside torch and Python counts.
    Backward counts for the function that ran its forward, or if autograd does not say which, for the one
    that called backward.
    """
    if not trace.has("python_frames"):
        return Table.of(Line, [], ["No Python frames: record with with_stack=True."])
    found = trace.query(Line, _LINES)
    nothing = [] if len(found) else ["No frame took any time inside the steps."]
    return Table(Line, found.arrow, [*nothing, *how_steps_were_found(trace)])
