"""Memory that is asked for and given back while a program runs: from the driver, and from the allocator."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._memory import DEVICE_NAME
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.device_calls import call_names
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Allocation", "allocations"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one operator and line asked of the driver by one function, or of the allocator, or gave back."""

    source: Annotated[
        str, "driver: a call into the runtime or driver; allocator: torch's own, which keeps blocks."
    ]
    call: Annotated[str | None, "Function of the runtime or driver; NULL for the allocator."]
    device: Annotated[
        str | None, "Device of the memory, or cpu; NULL for the driver, whose calls do not say it."
    ]
    op: Annotated[str | None, "Innermost operator around it; NULL outside any."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it; needs with_stack=True."]
    allocations: Annotated[int, "Number of allocations."]
    frees: Annotated[int, "Number of frees."]
    per_step: Annotated[float, "Allocations and frees per step, on average."]
    allocated_bytes: Annotated[int | None, "Bytes allocated; unknown for driver calls."]
    freed_bytes: Annotated[int | None, "Bytes freed."]
    host_ns: Annotated[int | None, "Host time in driver calls; NULL for the allocator."]
    host_share: Annotated[float | None, "Share of the host time of these steps."]


# Steps after the first: caches are filled and buffers made when a program starts.
_STEADY = """
    steady AS (
        SELECT host_start_ns, host_end_ns FROM steps
        QUALIFY count(*) OVER () = 1 OR row_number() OVER (ORDER BY host_start_ns, host_end_ns) > 1)
"""
_SUMMARY = f"""
    WITH {_STEADY} SELECT count(*) AS steps, sum(host_end_ns - host_start_ns)::BIGINT AS host_ns,
                          (SELECT count(*) FROM steps) AS all_steps
    FROM steady
"""
_DRIVER = f"""
    WITH {_STEADY}, calls AS (
        SELECT l.event, l.name, l.op, l.start_ns, coalesce(l.dur_ns, 0) AS dur_ns,
               regexp_matches(l.name, 'Free|Release|Unmap|Unregister|Trim') AS frees
        FROM launches l WHERE list_contains($allocating, l.name)),
    marked AS (
        SELECT c.* FROM calls c ASOF JOIN steady s ON c.start_ns >= s.host_start_ns
        WHERE c.start_ns < s.host_end_ns)
    SELECT 'driver' AS source, m.name AS call, NULL::VARCHAR AS device, o.name AS op, f.name AS user_frame,
           count(*) FILTER (NOT m.frees) AS allocations, count(*) FILTER (m.frees) AS frees,
           NULL::BIGINT AS allocated_bytes, NULL::BIGINT AS freed_bytes, sum(m.dur_ns)::BIGINT AS host_ns
    FROM marked m LEFT JOIN ops o ON o.event = m.op LEFT JOIN call_sites p ON p.event = m.event
    LEFT JOIN call_tree f ON f.node = p.user_frame
    GROUP BY m.name, o.name, f.name ORDER BY host_ns DESC, call, op, user_frame
"""
# The operator is the nearest on the path of calls; there are far fewer paths than events.
_ALLOCATOR = f"""
    WITH RECURSIVE {_STEADY}, changes AS (
        SELECT event, start_ns, bytes,
               {DEVICE_NAME} AS device
        FROM memory_events WHERE name = '[memory]' AND bytes IS NOT NULL AND start_ns IS NOT NULL),
    marked AS (
        SELECT c.* FROM changes c ASOF JOIN steady s ON c.start_ns >= s.host_start_ns
        WHERE c.start_ns < s.host_end_ns),
    paths AS (
        SELECT m.device, p.node, p.user_frame, count(*) FILTER (m.bytes > 0) AS allocations,
               count(*) FILTER (m.bytes < 0) AS frees,
               coalesce(sum(m.bytes) FILTER (m.bytes > 0), 0) AS allocated_bytes,
               coalesce(-sum(m.bytes) FILTER (m.bytes < 0), 0) AS freed_bytes
        FROM marked m LEFT JOIN call_sites p ON p.event = m.event GROUP BY m.device, p.node, p.user_frame),
    around AS (
        SELECT node AS path, node, parent, stored_in, name FROM call_tree
        WHERE node IN (SELECT node FROM paths)
        UNION ALL
        SELECT a.path, c.node, c.parent, c.stored_in, c.name
        FROM around a JOIN call_tree c ON c.node = a.parent
        WHERE a.stored_in IS DISTINCT FROM 'ops'),
    named AS (SELECT path, name FROM around WHERE stored_in = 'ops')
    SELECT 'allocator' AS source, NULL::VARCHAR AS call, p.device, n.name AS op, f.name AS user_frame,
           sum(p.allocations)::BIGINT AS allocations, sum(p.frees)::BIGINT AS frees,
           sum(p.allocated_bytes)::BIGINT AS allocated_bytes, sum(p.freed_bytes)::BIGINT AS freed_bytes,
           NULL::BIGINT AS host_ns
    FROM paths p LEFT JOIN named n ON n.path = p.node LEFT JOIN call_tree f ON f.node = p.user_frame
    GROUP BY p.device, n.name, f.name ORDER BY sum(p.allocations) + sum(p.frees) DESC, device, op, user_frame
"""


@analysis(
    reads={
        "launches": ("event", "name", "op", "start_ns", "dur_ns"),
        "ops": ("event", "name"),
        "memory_events": ("event", "name", "start_ns", "bytes", "device_type", "device"),
        "steps": ("source", "host_start_ns", "host_end_ns"),
        "call_sites": ("event", "node", "user_frame"),
        "call_tree": ("node", "parent", "stored_in", "name"),
    }
)
def allocations(trace: Trace) -> Table[Allocation]:
    """Lists allocations from the driver and from torch's allocator after the first step, by operator.

    Window: the marks of all steps except the first, because a program that starts has to allocate. A driver
    call there (cudaMalloc, cudaFree, cudaHostAlloc) is expensive and may wait for the device. What torch's
    allocator serves from its own blocks is cheap.
    """
    steps = trace.rows(_SUMMARY)[0]
    calls = call_names(trace).allocating
    found = trace.rows(_DRIVER, allocating=calls) if calls else []
    recorded = trace.has("memory_events")
    kept = trace.rows(_ALLOCATOR) if recorded else []
    rows = [_row(row, steps) for row in found + kept]
    if not steps["steps"]:
        return Table.of(Allocation, [], ["No events on the host: no steps to look at."])
    notes = [] if found else ["No call of the driver asked for memory or gave it back in these steps."]
    if not recorded:
        notes.append("No events of torch's allocator: record with profile_memory=True.")
    return Table.of(Allocation, rows, [*notes, _window(steps), *how_steps_were_found(trace)])


def _row(row: dict[str, Any], steps: dict[str, int]) -> Allocation:
    spent = row["host_ns"]
    return Allocation(
        per_step=(row["allocations"] + row["frees"]) / steps["steps"],
        host_share=spent / steps["host_ns"] if steps["host_ns"] and spent is not None else None,
        **row,
    )


def _window(steps: dict[str, int]) -> str:
    if steps["all_steps"] <= 1:
        return "Window: the only step; a program that starts has to allocate."
    return f"Window: the marks of {units.count(steps['steps'])} steps, all but the first."
