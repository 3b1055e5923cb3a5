"""Which ranges people or libraries marked, and the device work that was launched inside them."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.schema import STEP_MARK
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Annotation", "annotations"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """All ranges of one name on the host."""

    name: Annotated[str | None, "Name of the range."]
    calls: Annotated[int, "How often it was entered."]
    host_ns: Annotated[int, "Summed length on the host."]
    host_mean_ns: Annotated[float, "Mean length on the host."]
    device_ns: Annotated[int, "Summed time of the device work launched inside, whenever it ran."]
    device_span_ns: Annotated[
        int,
        "From the first start to the last end of a range's work, summed: its projection on the device.",
    ]
    launches: Annotated[int, "Launches of device work inside."]
    lag_ns: Annotated[
        int | None,
        "Mean time from the end of a range to that of its work; 0 if it ended before, NULL without.",
    ]


# A launch is inside a range that is open on its thread when it begins; what autograd launches on threads of
# its own, inside the range of the thread of its process that waits for it.
_RANGES = f"""
    WITH ranges AS (
        SELECT event, name, thread, pid, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns FROM annotations
        WHERE category = 'user_annotation' AND start_ns IS NOT NULL
          AND NOT regexp_full_match(coalesce(name, ''), '{STEP_MARK}')),
    ran AS (SELECT launch, min(start_ns) AS first_ns, max(start_ns + coalesce(dur_ns, 0)) AS last_ns
            FROM device_work WHERE launch IS NOT NULL GROUP BY launch),
    launched AS (
        SELECT l.thread, l.pid, l.start_ns, l.work_ns, w.first_ns, w.last_ns,
               p.phase IN ('backward', 'recomputation') AS backward
        FROM launches l JOIN ran w ON w.launch = l.event JOIN call_sites p ON p.event = l.event),
    -- Ranges and launches meet in slices of time, or each launch would be compared with every range.
    slices AS (SELECT greatest((max(end_ns) - min(start_ns)) // 4096, 1) AS width FROM ranges),
    sliced AS (SELECT r.*, unnest(range(start_ns // width, end_ns // width + 1)) AS slice
               FROM ranges r, slices),
    inside AS (
        SELECT r.event, l.* FROM (SELECT *, start_ns // width AS slice FROM launched, slices) l
        JOIN sliced r ON r.pid = l.pid AND r.slice = l.slice
             AND l.start_ns >= r.start_ns AND l.start_ns < r.end_ns
        WHERE l.thread = r.thread OR l.backward),
    work AS (SELECT event, sum(work_ns)::BIGINT AS device_ns, min(first_ns) AS first_ns,
                    max(last_ns) AS last_ns, count(*) AS launches
             FROM inside GROUP BY event)
    SELECT name, count(*) AS calls, sum(end_ns - r.start_ns)::BIGINT AS host_ns,
           sum(end_ns - r.start_ns) / count(*) AS host_mean_ns,
           coalesce(sum(device_ns), 0)::BIGINT AS device_ns,
           coalesce(sum(last_ns - first_ns), 0)::BIGINT AS device_span_ns,
           coalesce(sum(launches), 0)::BIGINT AS launches,
           CAST(avg(greatest(last_ns - end_ns, 0)) FILTER (last_ns IS NOT NULL) AS BIGINT) AS lag_ns
    FROM ranges r LEFT JOIN work w ON w.event = r.event
    GROUP BY name ORDER BY host_ns DESC, name
"""


@analysis(  # type: ignore[no-redef]  # the name of a future import, too
    reads={
        "annotations": ("event", "name", "category", "thread", "pid", "start_ns", "dur_ns"),
        "launches": ("event", "thread", "pid", "start_ns", "work_ns"),
        "device_work": ("launch", "start_ns", "dur_ns"),
        "call_sites": ("event", "phase"),
    }
)
def annotations(trace: Trace) -> Table[Annotation]:
    """Sums up marked ranges by name, with the device work that was launched inside them, whenever it ran.

    Ranges are counted as the host recorded them; their copies on the device and the step marks are left out.
    Nested ranges each count what is launched inside.
    """
    found = trace.query(Annotation, _RANGES) if trace.has("annotations") else Table.of(Annotation, ())
    if not len(found):
        note = (
            "No ranges beside step marks: put parts of the program into torch.profiler.record_function(NAME)."
        )
        return Table(Annotation, found.arrow, [note])
    return found
