"""How many nodes autograd records in a step."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RecordedGraph", "recorded_graphs"]


@dataclass(frozen=True, slots=True)
class RecordedGraph:
    """What one thread records for gradients in a step in the middle of the recording."""

    step: Annotated[int, "Number of the step."]
    thread: Annotated[int, "Thread that called the operators."]
    ops: Annotated[int, "Operators that the program called while gradients were on."]
    nodes: Annotated[int, "Nodes that autograd recorded for them, to go back through."]
    host_ns: Annotated[int, "Time in these operators."]


# An operator has the number of the node that comes next, unless gradients are off; each node takes one.
_SQL = f"""
    SELECT s.step, o.thread, count(*) AS ops, max(o.sequence) - min(o.sequence) AS nodes,
           sum(coalesce(o.dur_ns, 0))::BIGINT AS host_ns
    FROM ops o JOIN ({MIDDLE_STEP}) s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
    WHERE o.depth = 0 AND o.sequence >= 0 AND coalesce(o.forward_thread, 0) = 0
    GROUP BY s.step, o.thread HAVING max(o.sequence) > min(o.sequence) ORDER BY host_ns DESC, o.thread
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": ("thread", "start_ns", "dur_ns", "depth", "sequence", "forward_thread"),
    }
)
def recorded_graphs(trace: Trace) -> Table[RecordedGraph]:
    """Counts the nodes that autograd records in a step, and the operators that it records them for."""
    table = trace.query(RecordedGraph, _SQL)
    nothing = [] if len(table) else ["Autograd records nothing in the steps."]
    return table.with_notes((*nothing, *how_steps_were_found(trace)))
