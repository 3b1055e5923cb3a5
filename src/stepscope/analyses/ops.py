"""Which operators ran, how long the host spent in them, and what they launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Op", "ops"]


@dataclass(frozen=True, slots=True)
class Op:
    """All calls of the operators of one name."""

    name: Annotated[str | None, "Name of the operator."]
    calls: Annotated[int, "How often it was called."]
    host_total_ns: Annotated[int, "Time in which it was open, per thread; recursion counts once."]
    host_self_ns: Annotated[int, "Time in which it was the innermost operator of its thread."]
    host_self_no_runtime_ns: Annotated[int, "The same without the runtime calls of that thread."]
    device_self_ns: Annotated[int, "Device work launched with it as the innermost operator."]
    device_total_ns: Annotated[int, "Device work launched while it was open, once for the name."]


_COLUMNS = (
    "name",
    "total_once_ns",
    "self_ns",
    "self_no_runtime_ns",
    "device_self_ns",
    "device_once_ns",
)


@analysis(reads={"ops": _COLUMNS, "device_work": ("dur_ns", "launch", "op")})
def ops(trace: Trace) -> Table[Op]:
    """Sums up operators by name: calls, host time, and the device work they launched."""
    table = trace.query(
        Op,
        """
        SELECT name, count(*) AS calls, sum(total_once_ns)::BIGINT AS host_total_ns,
               sum(self_ns)::BIGINT AS host_self_ns,
               sum(self_no_runtime_ns)::BIGINT AS host_self_no_runtime_ns,
               sum(device_self_ns)::BIGINT AS device_self_ns,
               sum(device_once_ns)::BIGINT AS device_total_ns
        FROM ops GROUP BY name ORDER BY host_self_ns DESC, name
        """,
    )
    outside, unlinked = (
        trace.arrow(
            """
        SELECT coalesce(sum(dur_ns) FILTER (launch IS NOT NULL AND op IS NULL), 0)::BIGINT AS outside,
               coalesce(sum(dur_ns) FILTER (launch IS NULL), 0)::BIGINT AS unlinked
        FROM device_work
        """
        )
        .to_pylist()[0]
        .values()
    )
    notes = (
        f"Device work launched outside any operator: {units.duration(outside)}.",
        f"Device work whose launch is not in the profile: {units.duration(unlinked)}.",
    )
    return Table(Op, table.arrow, notes)
