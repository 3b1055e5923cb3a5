"""Which work the steps of a rank consist of: the same program does the same on every rank."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._exposed import ASKING, EXPOSED_READS, driving_threads
from stepscope.analyses._windows import how_steps_were_found, reads_of_all
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["WorkShape", "work_shapes"]


@dataclass(frozen=True, slots=True)
class WorkShape:
    """Work of one kind in the steps: the same program on another rank does the same."""

    name: Annotated[str, "Name of the kernel; without a device that of the operator."]
    launch_shape: Annotated[str | None, "Its grid and block; for an operator its tensor shapes, if recorded."]
    calls: Annotated[int, "How often it ran in the steps."]
    total_ns: Annotated[int, "Its summed time; of operators without those inside."]
    alone_calls: Annotated[int, "Those kernels of them during which no collective ran on the device."] = 0
    alone_ns: Annotated[int, "Their summed time."] = 0
    beside_calls: Annotated[int, "Those during all of which a collective ran on the device."] = 0
    beside_ns: Annotated[int, "Their summed time."] = 0


# `until` is when the last of the collectives that began by then was over.
_KERNELS = """
    WITH talking AS (
        SELECT device_name, start_ns AS since,
               max(start_ns + coalesce(dur_ns, 0)) OVER (
                   PARTITION BY device_name ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS until
        FROM device_work WHERE communicates),
    working AS (
        SELECT coalesce(name, '') AS name, grid || ' ' || block AS launch_shape, device_name, start_ns,
               coalesce(dur_ns, 0) AS dur_ns, start_ns + coalesce(dur_ns, 0) AS end_ns
        FROM device_work WHERE kind = 'kernel' AND NOT communicates)
    SELECT w.name, w.launch_shape, w.start_ns, w.dur_ns, coalesce(a.until >= w.end_ns, false) AS beside,
           coalesce(b.until <= w.start_ns, true) AS alone
    FROM working w ASOF LEFT JOIN talking a ON a.device_name = w.device_name AND w.start_ns >= a.since
        ASOF LEFT JOIN talking b ON b.device_name = w.device_name AND w.end_ns > b.since
"""
_OPERATORS = f"""
    SELECT coalesce(name, '') AS name, json_extract_string(args, '$."Input Dims"') AS launch_shape, start_ns,
           self_ns AS dur_ns, false AS beside, false AS alone
    FROM ops WHERE list_contains($threads, thread)
     AND NOT regexp_matches(name, '{ASKING}')
"""
_SUMMED = """
    SELECT w.name, w.launch_shape, count(*) AS calls, sum(w.dur_ns)::BIGINT AS total_ns,
           count(*) FILTER (w.alone) AS alone_calls,
           coalesce(sum(w.dur_ns) FILTER (w.alone), 0)::BIGINT AS alone_ns,
           count(*) FILTER (w.beside AND NOT w.alone) AS beside_calls,
           coalesce(sum(w.dur_ns) FILTER (w.beside AND NOT w.alone), 0)::BIGINT AS beside_ns
    FROM ({work}) w ASOF JOIN (SELECT start_ns AS since, end_ns FROM steps) s ON w.start_ns >= s.since
    WHERE w.start_ns < s.end_ns GROUP BY w.name, w.launch_shape
    ORDER BY total_ns DESC, w.name, w.launch_shape NULLS FIRST LIMIT $most
"""


@analysis(
    reads=reads_of_all(
        EXPOSED_READS,
        {
            "device_work": ("name", "kind", "grid", "block", "communicates", "device_name"),
            "ops": ("args", "self_ns"),
        },
    )
)
def work_shapes(
    trace: Trace, *, most: Annotated[int, "list this many, the most expensive ones"] = 500
) -> Table[WorkShape]:
    """Lists kernels that began in the steps, by name and launch shape; without a device operators.

    Collectives are left out. Most expensive first.
    """
    work, params = _KERNELS, {}
    if not trace.has("device_work"):
        work, params = _OPERATORS, {"threads": driving_threads(trace)}
    found = trace.query(WorkShape, _SUMMED.format(work=work), most=max(most, 0), **params)
    nothing = [] if len(found) else ["No kernel, and without a device no operator, began in a step."]
    return found.with_notes(nothing + how_steps_were_found(trace))
