"""Pauses of a device in which the host computed on the CPU."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._step_tree import COMPUTES_NS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CpuPause", "cpu_pauses"]

_LEAST_NS = 200_000
_MAPPED_BYTES = 32 << 20
"""Memory of the CPU that is larger than this is mapped for one tensor, and given back page by page when that
is freed: allocators keep smaller pieces."""
_LEAST_SHARE = 0.3
"""Part of a pause in operators on the CPU: below it, something else keeps the host."""


@dataclass(frozen=True, slots=True)
class CpuPause:
    """All pauses of one device that are mostly preparation on the CPU."""

    device: Annotated[str, "The device, by its index."]
    pauses: Annotated[int, "How many there are."]
    idle_ns: Annotated[int, "Their time until the launch that ended each."]
    computing_ns: Annotated[
        int, "The part in operators that compute on the CPU: with 50 µs or more of their own."
    ]
    longest_ns: Annotated[int, "The longest."]
    freeing_ns: Annotated[
        int, "Time of the other pauses that follow a large copy from pageable memory, which is freed then."
    ]


# Whatever the thread called between the last work of the device and the next launch has launched nothing.
# Pauses of one device lie one after the other: an operator can end in the last that began before it ends.
# A gap lies between two works; the pause before the first work of all begins with the first step.
_SQL = f"""
    WITH firsts AS (
        SELECT device_name, arg_min(launch, start_ns) AS launch FROM device_work GROUP BY device_name),
    waits AS (
        SELECT device_name AS device, thread, before, start_ns, start_ns + launch_delay_ns AS until FROM gaps
        UNION ALL
        SELECT f.device_name, l.thread, NULL, (SELECT min(start_ns) FROM steps), l.start_ns
        FROM firsts f JOIN launches l ON l.event = f.launch),
    pauses AS (
        SELECT w.device, w.thread, w.before, w.start_ns, w.until
        FROM waits w JOIN steps s ON w.until > s.start_ns AND w.until <= s.end_ns
        WHERE w.until - w.start_ns >= {_LEAST_NS}),
    driven AS (SELECT DISTINCT device, thread FROM pauses),
    ended AS (
        SELECT d.device, o.thread, o.start_ns, o.start_ns + o.dur_ns AS end_ns, o.self_no_runtime_ns AS own_ns
        FROM ops o JOIN driven d ON d.thread = o.thread JOIN call_sites c ON c.event = o.event
        WHERE o.self_no_runtime_ns >= {COMPUTES_NS} AND c.phase <> 'dataloader'),
    computed AS (
        SELECT p.device, p.start_ns, sum(least(e.own_ns, e.end_ns - p.start_ns)) AS ns
        FROM ended e ASOF JOIN pauses p
            ON p.device = e.device AND p.thread = e.thread AND p.start_ns < e.end_ns
        WHERE e.end_ns <= p.until GROUP BY p.device, p.start_ns),
    copied AS (
        SELECT event FROM device_work SEMI JOIN pauses ON before = event
        WHERE bytes >= {_MAPPED_BYTES} AND contains(name, 'Pageable -> ')),
    told AS (
        SELECT p.device, p.until - p.start_ns AS idle, coalesce(c.ns, 0) AS ns,
               coalesce(c.ns, 0) >= {_LEAST_SHARE} * idle AS computes,
               p.before IN (SELECT event FROM copied) AS freeing
        FROM pauses p LEFT JOIN computed c ON c.device = p.device AND c.start_ns = p.start_ns)
    SELECT device, count(*) FILTER (computes) AS pauses, sum(idle) FILTER (computes)::BIGINT AS idle_ns,
           sum(ns) FILTER (computes)::BIGINT AS computing_ns, max(idle) FILTER (computes) AS longest_ns,
           coalesce(sum(idle) FILTER (freeing AND NOT computes), 0)::BIGINT AS freeing_ns
    FROM told GROUP BY device HAVING pauses > 0 ORDER BY device
"""


@analysis(
    reads={
        "steps": ("source", "start_ns", "end_ns"),
        "gaps": ("device_name", "start_ns", "thread", "before", "launch_delay_ns"),
        "device_work": ("event", "device_name", "launch", "start_ns", "name", "bytes"),
        "launches": ("event", "thread", "start_ns"),
        "ops": ("event", "thread", "start_ns", "dur_ns", "self_no_runtime_ns"),
        "call_sites": ("event", "phase"),
    }
)
def cpu_pauses(trace: Trace) -> Table[CpuPause]:
    """Finds pauses of a device in which the host prepares something with operators on the CPU.

    All of such a pause belongs to the preparation: the Python between the operators, and the short ones.
    """
    table = trace.query(CpuPause, _SQL)
    nothing = [] if len(table) else ["In no pause of 200 µs or more does the host mostly compute on the CPU."]
    return table.with_notes((*nothing, *how_steps_were_found(trace)))
