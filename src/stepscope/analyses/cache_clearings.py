"""Memory that the program returned to the driver at once, and what the host did right before."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.device_calls import call_names
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CacheClearing", "cache_clearings"]


@dataclass(frozen=True, slots=True)
class CacheClearing:
    """Frees of one step in a row: outside of operators, with no other call and no operator between them."""

    step: Annotated[int, "The step in whose mark the first of them began."]
    frees: Annotated[int, "How many."]
    free_ns: Annotated[int, "Their host time."]
    pause_ns: Annotated[
        int, "How long nothing was recorded on any thread of the host right before: Python ran, or it waited."
    ]
    idle_ns: Annotated[int, "The part of it in which a device was idle and waited for a launch."]


# A pause begins when the last of everything recorded before has ended, on any thread: the program's own
# thread records nothing while another one runs the backward pass. A range around the pause is still open.
_SQL = """
    WITH freed AS (
        SELECT l.start_ns, coalesce(l.dur_ns, 0) AS dur_ns, s.step, s.host_end_ns
        FROM launches l ASOF JOIN steps s ON l.start_ns >= s.host_start_ns
        WHERE l.op IS NULL AND list_contains($freeing, l.name) AND l.start_ns < s.host_end_ns),
    others AS (
        SELECT start_ns, max(end_ns) OVER (ORDER BY start_ns, end_ns) AS busy_until_ns
        FROM (SELECT start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns FROM ops WHERE depth = 0
              UNION ALL
              SELECT start_ns, start_ns + coalesce(dur_ns, 0) FROM launches
              WHERE op IS NULL AND NOT list_contains($freeing, name))),
    ranges AS (
        SELECT start_ns + dur_ns AS end_ns FROM annotations
        WHERE category = 'user_annotation' AND dur_ns IS NOT NULL),
    runs AS (
        SELECT f.step, o.start_ns AS after_ns, count(*) AS frees, sum(f.dur_ns) AS free_ns,
               min(f.start_ns) AS end_ns, any_value(o.busy_until_ns) AS busy_until_ns
        FROM freed f ASOF JOIN others o ON f.start_ns >= o.start_ns
        GROUP BY f.step, o.start_ns),
    paused AS (
        SELECT r.step, r.frees, r.free_ns, r.end_ns,
               least(r.end_ns, greatest(r.busy_until_ns, coalesce(a.end_ns, 0))) AS start_ns
        FROM runs r ASOF LEFT JOIN ranges a ON r.end_ns >= a.end_ns),
    waited AS (
        SELECT p.end_ns, sum(least(p.end_ns, g.start_ns + g.launch_delay_ns)
                             - greatest(p.start_ns, g.start_ns)) AS idle_ns
        FROM paused p JOIN (SELECT start_ns, launch_delay_ns FROM gaps WHERE launch_delay_ns > 0) g
            ON g.start_ns < p.end_ns AND p.start_ns < g.start_ns + g.launch_delay_ns
        GROUP BY p.end_ns)
    SELECT p.step, p.frees, p.free_ns::BIGINT AS free_ns, (p.end_ns - p.start_ns)::BIGINT AS pause_ns,
           least(p.end_ns - p.start_ns, coalesce(w.idle_ns, 0))::BIGINT AS idle_ns
    FROM paused p LEFT JOIN waited w ON w.end_ns = p.end_ns
    ORDER BY p.end_ns
"""


@analysis(
    reads={
        "launches": ("name", "op", "start_ns", "dur_ns"),
        "ops": ("depth", "start_ns", "dur_ns"),
        "annotations": ("category", "start_ns", "dur_ns"),
        "gaps": ("start_ns", "launch_delay_ns"),
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
    }
)
def cache_clearings(trace: Trace) -> Table[CacheClearing]:
    """Lists the runs of frees outside of operators, and the pause of the host before each.

    `torch.cuda.empty_cache()` frees all blocks that the allocator keeps, one after the other. Tensors that
    are freed one by one are rows with one free each.
    """
    freeing = [name for name in call_names(trace).freeing if "Host" not in name]
    found = trace.rows(_SQL, freeing=freeing) if freeing else []
    nothing = [] if found else ["No step frees memory of the driver outside of operators."]
    rows = [CacheClearing(**row) for row in found]
    return Table.of(CacheClearing, rows, nothing + how_steps_were_found(trace))
