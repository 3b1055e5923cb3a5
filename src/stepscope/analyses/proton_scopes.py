"""Scopes and kernels that Proton counted."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ProtonScope", "proton_scopes"]

NO_PROTON = (
    "There is no profile of Proton: record one with proton.start() and name it with the trace, or alone."
)


@dataclass(frozen=True, slots=True)
class ProtonScope:
    """One scope, or one kernel in it."""

    path: Annotated[str, "Names of the scopes around it and its own, with / between."]
    device: Annotated[str | None, "Device that it ran on; NULL for a scope that ran nothing itself."]
    calls: Annotated[int | None, "How often it ran itself."]
    self_ns: Annotated[int | None, "Its own time on the device."]
    total_ns: Annotated[int, "The same with all that is inside."]
    total_share: Annotated[float | None, "Part of the time of the whole profile."]
    tflop_s: Annotated[float | None, "Operations in a second, of what the program says it does."]
    gb_s: Annotated[float | None, "Bytes in a second, likewise."]
    trace_ns: Annotated[int | None, "Time of kernels of the same name in the trace; NULL if it has none."]


_SCOPES = """
    WITH RECURSIVE up AS (
        SELECT scope AS leaf, scope, coalesce(time_ns, 0) AS ns FROM proton_scopes
        UNION ALL SELECT up.leaf, s.parent, up.ns FROM up JOIN proton_scopes s ON s.scope = up.scope
        WHERE s.parent IS NOT NULL),
    paths AS (
        SELECT scope, name AS path FROM proton_scopes WHERE parent IS NULL
        UNION ALL
        SELECT s.scope, p.path || '/' || s.name FROM proton_scopes s JOIN paths p ON p.scope = s.parent),
    totals AS (SELECT scope, sum(ns) AS total_ns FROM up GROUP BY scope),
    traced AS (SELECT name, sum(dur_ns) AS ns FROM kernels GROUP BY name)
    SELECT path, device, calls, time_ns AS self_ns, total_ns::BIGINT AS total_ns,
           total_ns / nullif((SELECT sum(time_ns) FROM proton_scopes), 0) AS total_share,
           flops / nullif(total_ns, 0) / 1e3 AS tflop_s, bytes / nullif(total_ns, 0) AS gb_s,
           t.ns::BIGINT AS trace_ns
    FROM proton_scopes s JOIN paths USING (scope) JOIN totals USING (scope)
         LEFT JOIN traced t ON t.name = s.name
    ORDER BY total_ns DESC, s.scope
"""


@analysis(
    reads={
        "proton_scopes": ("scope", "parent", "name", "device", "calls", "time_ns", "bytes", "flops"),
        "kernels": ("name", "dur_ns"),
    }
)
def proton_scopes(trace: Trace) -> Table[ProtonScope]:
    """Lists what Proton counted: time, calls and rates of scopes and kernels, the most expensive first."""
    if not trace.has("proton_scopes"):
        return Table.of(ProtonScope, [], [NO_PROTON])
    return trace.query(ProtonScope, _SCOPES)
