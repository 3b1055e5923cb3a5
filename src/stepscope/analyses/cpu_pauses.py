"""Pauses of a device in which the host computed on the CPU."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["COMPUTES_NS", "CpuPause", "cpu_pauses"]

_LEAST_NS = 200_000
COMPUTES_NS = 50_000
"""An operator that launches nothing and takes as long computes: views and checks take microseconds."""
_LEAST_SHARE = 0.3
"""Part of a pause in operators on the CPU: below it, something else keeps the host."""


@dataclass(frozen=True, slots=True)
class CpuPause:
    """All pauses of one device that are mostly preparation on the CPU."""

    device: Annotated[str, "The device, by its index."]
    pauses: Annotated[int, "How many there are."]
    idle_ns: Annotated[int, "Their time until the launch that ended each."]
    computing_ns: Annotated[int, "The part in operators on the CPU of 50 µs and more."]
    longest_ns: Annotated[int, "The longest."]


# Whatever the thread called between the last work of the device and the next launch has launched nothing.
# Pauses of one device lie one after the other: an operator can end in the last that began before it ends.
_SQL = f"""
    WITH pauses AS (
        SELECT g.device_name AS device, g.thread, g.start_ns, g.start_ns + g.launch_delay_ns AS until
        FROM gaps g JOIN steps s ON g.start_ns + g.launch_delay_ns > s.start_ns
            AND g.start_ns + g.launch_delay_ns <= s.end_ns
        WHERE g.launch_delay_ns >= {_LEAST_NS}),
    driven AS (SELECT DISTINCT device, thread FROM pauses),
    ended AS (
        SELECT d.device, o.thread, o.start_ns, o.start_ns + o.dur_ns AS end_ns
        FROM ops o JOIN driven d ON d.thread = o.thread JOIN call_sites c ON c.event = o.event
        WHERE o.depth = 0 AND o.dur_ns >= {COMPUTES_NS} AND c.phase <> 'dataloader'),
    computed AS (
        SELECT p.device, p.start_ns, p.until, sum(e.end_ns - greatest(e.start_ns, p.start_ns)) AS ns
        FROM ended e ASOF JOIN pauses p
            ON p.device = e.device AND p.thread = e.thread AND p.start_ns < e.end_ns
        WHERE e.end_ns <= p.until GROUP BY p.device, p.start_ns, p.until)
    SELECT device, count(*) AS pauses, sum(until - start_ns)::BIGINT AS idle_ns,
           sum(ns)::BIGINT AS computing_ns, max(until - start_ns) AS longest_ns
    FROM computed WHERE ns >= {_LEAST_SHARE} * (until - start_ns) GROUP BY device ORDER BY device
"""


@analysis(
    reads={
        "steps": ("source", "start_ns", "end_ns"),
        "gaps": ("device_name", "start_ns", "thread", "launch_delay_ns"),
        "ops": ("event", "thread", "start_ns", "dur_ns", "depth"),
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
