"""Copies between host and devices, and inside devices."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from stepscope.analyses import analysis
from stepscope.analyses._device_time import STEPS, Spent, spent_by_group, step_windows, whole_span
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Copy", "copies"]


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies of one direction and kind of host memory that began inside the steps."""

    direction: Annotated[str, "HtoD: host to device, DtoH, DtoD, PtoP: device to device, HtoH; or unknown."]
    host_memory: Annotated[
        str | None, "pageable or pinned, as the name says; NULL without host memory, and on ROCm."
    ]
    place: Annotated[str | None, "Operator or line of the user's code that asked for it, as `--by` says."]
    calls: Annotated[int, "How many copies."]
    bytes: Annotated[int | None, "Bytes copied; NULL if unknown."]
    total_ns: Annotated[int, "Their summed time on the device: overlapped and exposed."]
    gb_per_s: Annotated[float | None, "Bytes over time, of the copies whose size is known."]
    overlapped_ns: Annotated[int, "Share of their time in which a kernel ran on the same device."]
    exposed_ns: Annotated[int, "The rest of it."]
    call: Annotated[str | None, "Runtime call that asked for them; for most of them, if several did."]
    host_ns: Annotated[int, "Time that the host spent in these calls."]
    blocked_ns: Annotated[int, "Share of the copies' time in which the host was still in the call for it."]


By = Literal["direction", "op", "frame"]

_PLACES = {
    "direction": ("NULL::VARCHAR", ""),
    "op": ("o.name", "LEFT JOIN (SELECT event, name FROM ops) o ON o.event = w.op"),
    "frame": (
        "f.name",
        """LEFT JOIN (SELECT event, user_frame FROM call_sites) p ON p.event = w.launch
           LEFT JOIN (SELECT node, name FROM call_tree) f ON f.node = p.user_frame""",
    ),
}
# A copy belongs to the step in which it began, with all of its bytes and all of its time.
_COPIES = """
    SELECT w.*, l.name AS call, l.start_ns AS call_start_ns, coalesce(l.dur_ns, 0) AS call_ns,
           {place} AS place,
           coalesce(nullif(regexp_extract(w.name, '[HDPA]to[HDPA]'), ''), 'unknown') AS direction,
           CASE WHEN contains(w.name, 'Pageable') THEN 'pageable'
                WHEN contains(w.name, 'Pinned') THEN 'pinned' END AS host_memory
    FROM (SELECT w.name, device_name, w.start_ns, coalesce(dur_ns, 0) AS dur_ns, bytes, launch, op
          FROM device_work w ASOF JOIN (SELECT start_ns, end_ns FROM steps) s ON s.start_ns <= w.start_ns
          WHERE kind = 'memcpy' AND w.start_ns < s.end_ns) w
    LEFT JOIN (SELECT event, name, start_ns, dur_ns FROM launches) l ON l.event = w.launch {joins}
"""
_GROUPED = "concat_ws(chr(31), direction, coalesce(host_memory, chr(0)), coalesce(place, chr(0)))"
_GROUPS = f"""
    WITH copied AS (SELECT *, {_GROUPED} AS grouped FROM ({_COPIES})),
    asked AS (
        SELECT grouped, sum(call_ns) AS asked_ns FROM (SELECT DISTINCT grouped, launch, call_ns FROM copied)
        GROUP BY grouped)
    SELECT grouped, any_value(direction) AS direction, any_value(host_memory) AS host_memory,
           any_value(place) AS place, count(*) AS calls, sum(bytes)::BIGINT AS bytes,
           sum(dur_ns)::BIGINT AS total_ns, sum(dur_ns) FILTER (bytes IS NOT NULL)::BIGINT AS sized_ns,
           count(*) FILTER (bytes IS NULL) AS unsized, mode(call ORDER BY call) AS call,
           coalesce(any_value(asked_ns), 0)::BIGINT AS call_ns,
           sum(greatest(0, least(start_ns + dur_ns, call_start_ns + call_ns)
                           - greatest(start_ns, call_start_ns)))::BIGINT AS blocked_ns
    FROM copied LEFT JOIN asked USING (grouped) GROUP BY grouped ORDER BY grouped
"""
_ANY = "SELECT 1 AS one FROM device_work WHERE kind = 'memcpy' LIMIT 1"
_TIMES = f"""
    SELECT device_name, start_ns, dur_ns, {_GROUPED} AS grouped FROM ({_COPIES})
    UNION ALL
    SELECT device_name, start_ns, coalesce(dur_ns, 0) AS dur_ns, NULL FROM device_work WHERE kind = 'kernel'
"""


@analysis(
    reads={
        "device_work": ("name", "device_name", "start_ns", "dur_ns", "kind", "bytes", "launch", "op"),
        "launches": ("event", "name", "start_ns", "dur_ns"),
        "ops": ("event", "name"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
        "steps": STEPS,
    }
)
def copies(
    trace: Trace,
    *,
    by: Annotated[
        By, "List each direction once, or by operator, or by line of the user's code."
    ] = "direction",
) -> Table[Copy]:
    """Sums up the copies that began inside the steps: bytes, bandwidth, and how much was exposed."""
    windows = step_windows(trace)
    place, joins = _PLACES[by]
    any_copy = trace.once("any copy", lambda: trace.rows(_ANY))
    groups = trace.rows(_GROUPS.format(place=place, joins=joins)) if any_copy else []
    numbers = {group["grouped"]: number for number, group in enumerate(groups)}
    spent = spent_by_group(trace, _TIMES.format(place=place, joins=joins), numbers, whole_span(trace))
    rows = [_row(group, time) for group, time in zip(groups, spent, strict=True)]
    notes = list(windows.notes)
    unsized = sum(group["unsized"] for group in groups)
    if not rows:
        notes.append("No copies began inside the steps.")
    if unsized:
        notes.append(f"The profile has no size of {unsized} copies.")
    if by == "frame" and rows and all(row.place is None for row in rows):
        notes.append("No Python frames: record with with_stack=True.")
    return Table.of(
        Copy, sorted(rows, key=lambda row: (-row.total_ns, row.direction, row.place or "")), notes
    )


def _row(group: dict[str, Any], spent: Spent) -> Copy:
    sized_ns = group["sized_ns"]
    return Copy(
        direction=group["direction"],
        host_memory=group["host_memory"],
        place=group["place"],
        calls=group["calls"],
        bytes=group["bytes"],
        total_ns=group["total_ns"],
        gb_per_s=group["bytes"] / sized_ns if group["bytes"] is not None and sized_ns else None,
        overlapped_ns=spent.covered_ns,
        exposed_ns=group["total_ns"] - spent.covered_ns,
        call=group["call"],
        host_ns=group["call_ns"],
        blocked_ns=group["blocked_ns"] or 0,
    )
