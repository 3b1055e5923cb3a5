"""In which phase of training devices waited for the host."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StarvingPhase", "starving_phases"]


@dataclass(frozen=True, slots=True)
class StarvingPhase:
    """What the host did in one phase, over all steps."""

    phase: Annotated[str, "dataloader, forward, backward, recomputation, optimizer, or other."]
    starved_ns: Annotated[int, "Time of the steps in which a device was starved and waited for this phase."]
    share: Annotated[float | None, "Share of such time in all phases; NULL without any."]
    launches: Annotated[int, "Launches of device work that the phase made in the steps."]
    device_ns: Annotated[int, "Summed time of that work."]


_LATE = """
    WITH late AS (SELECT phase, sum(starved_ns) AS starved_ns FROM call_tree GROUP BY phase),
    launched AS (
        SELECT p.phase, count(*) AS launches, sum(l.work_ns) AS device_ns
        FROM call_sites p JOIN launches l ON l.event = p.event
        WHERE p.step IS NOT NULL AND l.work_events > 0 GROUP BY p.phase)
    SELECT phase, coalesce(starved_ns, 0)::BIGINT AS starved_ns,
           starved_ns / nullif(sum(starved_ns) OVER (), 0) AS share,
           coalesce(launches, 0)::BIGINT AS launches, coalesce(device_ns, 0)::BIGINT AS device_ns
    FROM late FULL JOIN launched USING (phase)
    WHERE starved_ns > 0 OR launches > 0 ORDER BY 2 DESC, phase
"""


@analysis(
    reads={
        "call_tree": ("phase", "starved_ns"),
        "call_sites": ("event", "step", "phase"),
        "launches": ("event", "work_ns", "work_events"),
        "steps": ("source",),
    }
)
def starving_phases(trace: Trace) -> Table[StarvingPhase]:
    """Says for each phase of training how long devices waited for the host to launch its work."""
    found = trace.query(StarvingPhase, _LATE)
    nothing = [] if len(found) else ["No device waited for the host in a step."]
    return Table(StarvingPhase, found.arrow, nothing + how_steps_were_found(trace))
