"""Every idle gap of every device with its causes, for a timeline: kept with the trace, asked for a window.

`idle_gaps` sums the causes up; here each gap is kept, in two Arrow tables: about 60 bytes a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analyses._idle import CAUSES, IDLE_READS, Division, side_of
from stepscope.records import dataclass
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["EveryGap", "every_gap", "gap_boxes", "idle_by_cause", "largest_gap"]


@dataclass(frozen=True, slots=True)
class EveryGap:
    """All gaps between the first and the last work of each device; times are ns after the trace's base."""

    gaps: pa.Table
    """number, device, start_ns, idle_ns, after (event), drained (event of a blocking call)."""
    parts: pa.Table
    """number of the gap, cause (a place in CAUSES), ns: those of one gap sum to its `idle_ns`."""


class _Collecting(Division):
    """Divides every gap as `idle_gaps` does, and keeps what it finds."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace, "span", 0)
        self._base = trace.meta.base_ns
        self._gaps_found: list[pa.Table] = []
        self._parts_found: list[pa.Table] = []
        self._number = 0

    def _count(self, batch: Any, idle: pa.Array, parts: dict[int, pa.Array], drained: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = pa.array(range(self._number, self._number + batch.num_rows), pa.int64())
        self._number += batch.num_rows
        columns = {
            "number": numbers,
            "device": batch["device_name"],
            "start_ns": pc.subtract(batch["start_ns"], self._base),
            "idle_ns": idle,
            "after": batch["after"],
            "drained": drained,
        }
        self._gaps_found.append(pa.table(columns).filter(pc.greater(idle, 0)))
        for cause, amount in parts.items():
            some = pc.greater(amount, 0)
            kept = {"number": numbers.filter(some), "ns": amount.filter(some)}
            causes = pa.repeat(pa.scalar(cause, pa.int64()), len(kept["number"]))
            self._parts_found.append(pa.table({**kept, "cause": causes}))

    def found(self) -> EveryGap:
        """All of them, in order of device and time."""
        import pyarrow as pa

        self.divide()
        numbers = [(name, pa.int64()) for name in ("number", "ns", "cause")]
        no_parts = pa.schema(numbers).empty_table()
        times = [(name, pa.int64()) for name in ("start_ns", "idle_ns", "after", "drained")]
        no_gaps = pa.schema([("number", pa.int64()), ("device", pa.string()), *times]).empty_table()
        gaps = pa.concat_tables([no_gaps, *self._gaps_found])
        order = [("device", "ascending"), ("start_ns", "ascending")]
        return EveryGap(gaps.sort_by(order), pa.concat_tables([no_parts, *self._parts_found]))


def every_gap(trace: Trace) -> EveryGap:
    """All gaps of a trace, divided once."""

    def make() -> EveryGap:
        return _Collecting(trace.reading(IDLE_READS, ours=True)).found()

    found: EveryGap = trace.once("every gap", make)
    return found


# A gap that is at least a pixel long stays alone; shorter ones that begin in one pixel become one box.
_BOXES = """
    WITH here AS (
        SELECT *, idle_ns >= $pixel AS alone, start_ns // $pixel AS pixel FROM gaps
        WHERE start_ns < $until AND start_ns + idle_ns > $since),
    boxes AS (
        SELECT device, alone, CASE WHEN alone THEN number ELSE pixel END AS box, min(start_ns) AS start_ns,
               (max(start_ns + idle_ns) - min(start_ns))::BIGINT AS dur_ns, sum(idle_ns)::BIGINT AS idle_ns,
               count(*) AS count, CASE WHEN alone THEN any_value(after) END AS after,
               CASE WHEN alone THEN any_value(drained) END AS drained
        FROM here GROUP BY device, alone, box),
    spent AS (
        SELECT h.device, h.alone, CASE WHEN h.alone THEN h.number ELSE h.pixel END AS box, p.cause,
               sum(p.ns)::BIGINT AS ns
        FROM here h JOIN parts p USING (number) GROUP BY ALL),
    lists AS (
        SELECT device, alone, box, list(cause ORDER BY ns DESC, cause) AS causes,
               list(ns ORDER BY ns DESC, cause) AS ns
        FROM spent GROUP BY ALL)
    SELECT b.device, b.start_ns, b.dur_ns, b.idle_ns, b.count, b.after, b.drained, l.causes, l.ns
    FROM boxes b JOIN lists l USING (device, alone, box) ORDER BY b.device, b.start_ns
"""


def gap_boxes(trace: Trace, since: int, until: int, pixel_ns: int) -> list[dict[str, Any]]:
    """The gaps of a window as boxes, no more than two for each pixel and device."""
    every = every_gap(trace)
    params = {"since": since, "until": until, "pixel": max(pixel_ns, 1)}
    found: list[dict[str, Any]] = ask(_BOXES, params, gaps=every.gaps, parts=every.parts).to_pylist()
    for box in found:
        causes = box.pop("causes")
        box["side"], box["cause"] = side_of(causes[0]).value, CAUSES[causes[0]].value
        box["parts"] = {CAUSES[cause].value: ns for cause, ns in zip(causes, box.pop("ns"), strict=True)}
    return found


_CLIPPED = """
    WITH here AS (
        SELECT number, device, idle_ns,
               least(start_ns + idle_ns, $until) - greatest(start_ns, $since) AS inside_ns
        FROM gaps WHERE start_ns < $until AND start_ns + idle_ns > $since)
    SELECT device, number, idle_ns, inside_ns, list(cause ORDER BY cause) AS causes,
           list(ns ORDER BY cause) AS ns
    FROM here JOIN parts USING (number) WHERE inside_ns < idle_ns GROUP BY ALL
"""
_WHOLE = """
    SELECT device, cause, sum(ns)::BIGINT AS ns FROM gaps JOIN parts USING (number)
    WHERE start_ns >= $since AND start_ns + idle_ns <= $until GROUP BY ALL
"""


def idle_by_cause(trace: Trace, since: int, until: int) -> dict[str, dict[int, int]]:
    """For each device the idle time of a window by cause; what the window cuts is divided as all of it is."""
    every = every_gap(trace)
    tables = {"gaps": every.gaps, "parts": every.parts}
    params = {"since": since, "until": until}
    sums: dict[str, dict[int, int]] = {}
    for row in ask(_WHOLE, params, **tables).to_pylist():
        sums.setdefault(row["device"], {})[row["cause"]] = row["ns"]
    for row in ask(_CLIPPED, params, **tables).to_pylist():
        of_device = sums.setdefault(row["device"], {})
        left_of, left = row["idle_ns"], row["inside_ns"]
        for cause, ns in zip(row["causes"], row["ns"], strict=True):
            here = left * ns // left_of  # what is left goes to the rest: all of them sum to what is inside
            left_of, left = left_of - ns, left - here
            of_device[cause] = of_device.get(cause, 0) + here
    return sums


_LARGEST = """
    WITH windows AS (SELECT unnest($starts::BIGINT[]) AS low, unnest($ends::BIGINT[]) AS high),
    spent AS (
        SELECT g.number, g.device, g.start_ns, g.idle_ns, g.after, g.drained, sum(p.ns) AS ns
        FROM gaps g JOIN parts p USING (number)
        WHERE list_contains($causes, p.cause)
          AND ($drained IS NULL OR $drained = (g.drained IS NOT NULL)) GROUP BY ALL)
    SELECT s.* EXCLUDE (ns) FROM spent s
    WHERE EXISTS (SELECT 1 FROM windows w WHERE s.start_ns >= w.low AND s.start_ns < w.high)
    ORDER BY s.ns DESC, s.start_ns, s.number LIMIT 1
"""


def largest_gap(
    trace: Trace, causes: list[int], windows: list[tuple[int, int]], *, drained: bool | None = None
) -> dict[str, Any] | None:
    """The gap in some windows that lost most to some causes, with or without a blocking call before it."""
    every = every_gap(trace)
    params = {
        "causes": causes,
        "drained": drained,
        "starts": [low for low, _ in windows],
        "ends": [high for _, high in windows],
    }
    rows: list[dict[str, Any]] = ask(_LARGEST, params, gaps=every.gaps, parts=every.parts).to_pylist()
    return rows[0] if rows else None
