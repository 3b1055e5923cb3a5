"""Copies between host and devices, and inside devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Annotated, Any, Literal

from stepscope.analyses import analysis
from stepscope.analyses._device_time import STEPS, spent_by_group, step_windows, whole_span
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


@dataclass(frozen=True, slots=True)
class _Group:
    """Copies that have all in common: a row of the query, and the time in which a kernel ran beside them."""

    row: dict[str, Any]
    covered_ns: int


_OF_OP = "LEFT JOIN (SELECT event, name FROM ops) o ON o.event = w.op"
_OF_FRAME = """LEFT JOIN (SELECT event, user_frame FROM call_sites) p ON p.event = w.launch
    LEFT JOIN (SELECT node, name FROM call_tree) f ON f.node = p.user_frame"""
_PLACES = {
    "direction": ("NULL::VARCHAR", "NULL::VARCHAR", ""),
    "op": ("o.name", "NULL::VARCHAR", _OF_OP),
    "frame": ("NULL::VARCHAR", "f.name", _OF_FRAME),
    "both": ("o.name", "f.name", f"{_OF_OP} {_OF_FRAME}"),
}
# A copy belongs to the step in which it began, with all of its bytes and all of its time.
_COPIES = """
    SELECT w.*, l.name AS call, l.start_ns AS call_start_ns, coalesce(l.dur_ns, 0) AS call_ns,
           {op} AS of_op, {frame} AS of_frame,
           coalesce(nullif(regexp_extract(w.name, '[HDPA]to[HDPA]'), ''), 'unknown') AS direction,
           CASE WHEN contains(w.name, 'Pageable') THEN 'pageable'
                WHEN contains(w.name, 'Pinned') THEN 'pinned' END AS host_memory
    FROM (SELECT w.name, device_name, w.start_ns, coalesce(dur_ns, 0) AS dur_ns, bytes, launch, op
          FROM device_work w ASOF JOIN (SELECT start_ns, end_ns FROM steps) s ON s.start_ns <= w.start_ns
          WHERE kind = 'memcpy' AND w.start_ns < s.end_ns) w
    LEFT JOIN (SELECT event, name, start_ns, dur_ns FROM launches) l ON l.event = w.launch {joins}
"""
_KEY = ("direction", "host_memory", "of_op", "of_frame")
_GROUPED = f"concat_ws(chr(31), {', '.join(f'coalesce({column}, chr(0))' for column in _KEY)})"
_GROUPS = f"""
    WITH copied AS (SELECT *, {_GROUPED} AS grouped FROM ({_COPIES})),
    asked AS (
        SELECT grouped, sum(call_ns) AS asked_ns FROM (SELECT DISTINCT grouped, launch, call_ns FROM copied)
        GROUP BY grouped)
    SELECT grouped, {", ".join(f"any_value({column}) AS {column}" for column in _KEY)},
           count(*) AS calls, sum(bytes)::BIGINT AS bytes, sum(dur_ns)::BIGINT AS total_ns,
           coalesce(sum(dur_ns) FILTER (bytes IS NOT NULL), 0)::BIGINT AS sized_ns,
           count(*) FILTER (bytes IS NULL) AS unsized, histogram(call) AS called,
           coalesce(any_value(asked_ns), 0)::BIGINT AS call_ns,
           coalesce(sum(greatest(0, least(start_ns + dur_ns, call_start_ns + call_ns)
                                    - greatest(start_ns, call_start_ns))), 0)::BIGINT AS blocked_ns
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
    groups: dict[tuple[str, ...], list[_Group]] = defaultdict(list)
    for one in _groups(trace, by):
        place = {"op": one.row["of_op"], "frame": one.row["of_frame"]}.get(by)
        groups[one.row["direction"], one.row["host_memory"] or "", place or ""].append(one)
    rows = [_row(parts, by) for _, parts in sorted(groups.items())]
    notes = list(windows.notes)
    unsized = sum(one.row["unsized"] for parts in groups.values() for one in parts)
    if not rows:
        notes.append("No copies began inside the steps.")
    if unsized:
        notes.append(f"The profile has no size of {unsized} copies.")
    if by == "frame" and rows and all(row.place is None for row in rows):
        notes.append("No Python frames: record with with_stack=True.")
    return Table.of(
        Copy, sorted(rows, key=lambda row: (-row.total_ns, row.direction, row.place or "")), notes
    )


def _groups(trace: Trace, by: By) -> list[_Group]:
    """The copies by what tells them apart: of a small trace by operator and frame at once, for all."""

    def work_out() -> list[_Group]:
        op, frame, joins = _PLACES[level]
        asked = {"op": op, "frame": frame, "joins": joins}
        any_copy = trace.once("any copy", lambda: trace.rows(_ANY))
        rows = trace.rows(_GROUPS.format(**asked)) if any_copy else []
        numbers = {row["grouped"]: number for number, row in enumerate(rows)}
        spent = spent_by_group(trace, _TIMES.format(**asked), numbers, whole_span(trace))
        return [_Group(row, time.covered_ns) for row, time in zip(rows, spent, strict=True)]

    level = "both" if trace.is_small else by
    found: list[_Group] = trace.once(("copies", level), work_out)
    return found


def _row(parts: list[_Group], by: By) -> Copy:
    rows = [part.row for part in parts]
    total_ns, sized_ns, call_ns, blocked_ns, calls = (
        sum(row[figure] for row in rows)
        for figure in ("total_ns", "sized_ns", "call_ns", "blocked_ns", "calls")
    )
    sizes = [row["bytes"] for row in rows if row["bytes"] is not None]
    called: Counter[str] = Counter()
    for row in rows:
        called.update(row["called"] or {})
    covered_ns = sum(part.covered_ns for part in parts)
    return Copy(
        direction=rows[0]["direction"],
        host_memory=rows[0]["host_memory"],
        place={"op": rows[0]["of_op"], "frame": rows[0]["of_frame"]}.get(by),
        calls=calls,
        bytes=sum(sizes) if sizes else None,
        total_ns=total_ns,
        gb_per_s=sum(sizes) / sized_ns if sizes and sized_ns else None,
        overlapped_ns=covered_ns,
        exposed_ns=total_ns - covered_ns,
        call=min(called, key=lambda name: (-called[name], name)) if called else None,
        host_ns=call_ns,
        blocked_ns=blocked_ns,
    )
