"""How the memory of each device rose and fell."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._memory import COLUMNS, EVENTS, missing
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MemoryPoint", "memory_curves"]


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """What was allocated on one device from one instant on, until the next point or shortly before."""

    device: Annotated[str, "The device by its index, or cpu."]
    start_ns: Annotated[int, "From when on, in ns since the epoch."]
    allocated_bytes: Annotated[int, "Allocated from then on."]
    reserved_bytes: Annotated[int | None, "Reserved by the allocator from then on; NULL for the host."]


# Of every stretch of time the lowest and the highest point stay, and the ends of the curve: no peak is lost.
_SQL = f"""
    WITH {EVENTS},
    spans AS (
        SELECT device_name, min(start_ns) AS low, max(start_ns) AS high, min(nth) AS first_nth,
               max(nth) AS last_nth, count(*) AS events
        FROM changes GROUP BY device_name),
    stretches AS (
        SELECT device_name, nth, allocated_bytes, first_nth, last_nth, CASE WHEN events <= $points THEN nth
               ELSE ((start_ns - low)::HUGEINT * $stretches) // (high - low + 1) END AS stretch
        FROM changes JOIN spans USING (device_name)),
    chosen AS (
        SELECT unnest([arg_min(nth, row(allocated_bytes, nth)),
                       arg_max(nth, row(allocated_bytes, -nth))]) AS nth
        FROM stretches GROUP BY device_name, stretch
        UNION
        SELECT unnest([first_nth, last_nth]) FROM spans)
    SELECT device_name AS device, start_ns, allocated_bytes, reserved_bytes
    FROM changes JOIN chosen USING (nth) ORDER BY device, nth
"""


@analysis(reads={"memory_events": COLUMNS})
def memory_curves(
    trace: Trace, *, points: Annotated[int, "how many points at most for a device, 4 or more"] = 200
) -> Table[MemoryPoint]:
    """Draws the memory of each device over time, with few points and no peak lost."""
    if points < 4:
        raise StepscopeError(f"{points} points are too few for a curve", hint="--points 4 or more")
    if notes := missing(trace):
        return Table.of(MemoryPoint, (), notes)
    table = trace.query(MemoryPoint, _SQL, points=points, stretches=(points - 2) // 2)
    events = trace.arrow(
        f"WITH {EVENTS} SELECT device_name, count(*) AS n FROM changes GROUP BY 1 ORDER BY 1"
    )
    notes = tuple(
        f"Device {row['device_name']}: {row['n']} events; of each stretch of time the lowest and the highest."
        for row in events.to_pylist()
        if row["n"] > points
    )
    return Table(MemoryPoint, table.arrow, notes)
