"""How long Python's garbage collector stopped the program."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._rank_file import NO_RANK_FILE, rank_file_of
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CollectorPause", "collector_pauses"]


@dataclass(frozen=True, slots=True)
class CollectorPause:
    """The pauses of one step and generation."""

    step: Annotated[
        int | None, "Step in whose window they began; NULL outside of the steps, as in another pass."
    ]
    generation: Annotated[int | None, "What was collected: 0 the youngest objects, 2 all of them."]
    pauses: Annotated[int, "How many."]
    total_ns: Annotated[int, "Their summed time, in which no Python code ran."]
    longest_ns: Annotated[int, "The longest of them."]
    idle_ns: Annotated[
        int | None,
        "The part of it in which a device was idle and waited for a launch; NULL without device work.",
    ]
    collected: Annotated[int | None, "Objects that they freed."]


# A pause belongs to the step in which it began. At most all of it was idle, however many devices waited.
_PAUSES = """
    WITH paused AS (
        SELECT p.event, p.generation, p.collected, p.start_ns, coalesce(p.dur_ns, 0) AS dur_ns,
               CASE WHEN p.start_ns < s.end_ns THEN s.step END AS step,
               CASE WHEN p.start_ns < s.end_ns THEN s.start_ns END AS step_start_ns
        FROM collector_pauses p ASOF LEFT JOIN (SELECT step, start_ns, end_ns FROM steps) s
          ON s.start_ns <= p.start_ns),
    waited AS ({waited})
    SELECT step, generation, count(*) AS pauses, sum(dur_ns)::BIGINT AS total_ns,
           max(dur_ns)::BIGINT AS longest_ns, {idle} AS idle_ns, sum(collected)::BIGINT AS collected
    FROM paused LEFT JOIN waited USING (event)
    GROUP BY step, step_start_ns, generation
    ORDER BY step_start_ns NULLS LAST, generation NULLS LAST
"""
_WAITED = """
    SELECT p.event, sum(least(p.start_ns + p.dur_ns, g.start_ns + g.launch_delay_ns)
                        - greatest(p.start_ns, g.start_ns)) AS idle_ns
    FROM paused p JOIN (SELECT start_ns, launch_delay_ns FROM gaps WHERE launch_delay_ns > 0) g
      ON g.start_ns < p.start_ns + p.dur_ns AND p.start_ns < g.start_ns + g.launch_delay_ns
    GROUP BY p.event
"""
_IDLE = "sum(least(dur_ns, coalesce(idle_ns, 0)))::BIGINT"
_NO_DEVICE = "SELECT NULL::BIGINT AS event, NULL::BIGINT AS idle_ns"


@analysis(
    reads={
        "collector_pauses": ("event", "start_ns", "dur_ns", "generation", "collected"),
        "gaps": ("start_ns", "launch_delay_ns"),
        "steps": ("step", "source", "start_ns", "end_ns"),
    }
)
def collector_pauses(trace: Trace) -> Table[CollectorPause]:
    """Sums up the pauses of Python's garbage collector, by step and generation.

    No profiler records them: `stepscope run` listens to the collector while it records. While the collector
    runs, no Python code does, and nothing is launched.
    """
    if not trace.has("collector_pauses"):
        alone = rank_file_of(trace) is None
        note = NO_RANK_FILE if alone else "The garbage collector did not run while the program was recorded."
        return Table.of(CollectorPause, [], [note])
    has_device = trace.has("device_work")
    waited, idle = (_WAITED, _IDLE) if has_device else (_NO_DEVICE, "NULL::BIGINT")
    found = trace.rows(_PAUSES.format(waited=waited, idle=idle))
    return Table.of(CollectorPause, [CollectorPause(**row) for row in found], how_steps_were_found(trace))
