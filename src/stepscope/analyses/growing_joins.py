"""Tensors that grow by concatenation, step by step."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GrowingJoins", "growing_joins"]

LEAST_JOINS = 4
_LONG_NS = 20_000
"""Shorter ones join small tensors, such as positions and masks."""
_LEAST_GROWTH = 2.5
_LONGER = 1.02
"""Times the longest so far: the same join may take a little longer by chance."""


@dataclass(frozen=True, slots=True)
class GrowingJoins:
    """Calls of torch.cat in one step, each of which takes longer than all before."""

    step: Annotated[int, "Number of the step."]
    joins: Annotated[int, "How many there are; those under 20 µs do not count."]
    device_ns: Annotated[int, "Summed duration of the copies that they made."]
    first_ns: Annotated[int, "Duration of the first."]
    last_ns: Annotated[int, "Duration of the last."]


_SQL = f"""
    WITH joined AS (
        SELECT w.op, min(w.start_ns) AS start_ns, sum(w.dur_ns)::BIGINT AS dur_ns
        FROM device_work w JOIN ops o ON o.event = w.op
        WHERE o.name = 'aten::cat' AND w.dur_ns IS NOT NULL GROUP BY w.op HAVING sum(w.dur_ns) >= {_LONG_NS})
    SELECT s.step, list(j.dur_ns ORDER BY j.start_ns) AS durs
    FROM joined j JOIN steps s ON j.start_ns >= s.start_ns AND j.start_ns < s.end_ns
    GROUP BY s.step HAVING count(*) >= {LEAST_JOINS} ORDER BY s.step
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "end_ns"),
        "ops": ("event", "name"),
        "device_work": ("op", "start_ns", "dur_ns"),
    }
)
def growing_joins(trace: Trace) -> Table[GrowingJoins]:
    """Lists steps in which each torch.cat takes longer than the one before: a tensor grows, and is copied.

    A tensor to which n parts are joined one by one is copied n times, about n/2 times as much as needed.
    """
    if not trace.may_have_name("^aten::cat$"):
        return Table.of(GrowingJoins, [], ["Nothing is concatenated."])
    found = [(row["step"], _records(row["durs"])) for row in trace.rows(_SQL)]
    rows = [
        GrowingJoins(step, len(grown), sum(grown), grown[0], grown[-1])
        for step, grown in found
        if len(grown) >= LEAST_JOINS and grown[-1] >= _LEAST_GROWTH * grown[0]
    ]
    nothing = [] if rows else ["No calls of torch.cat get longer from one to the next."]
    return Table.of(GrowingJoins, rows, nothing + how_steps_were_found(trace))


def _records(durs: list[int]) -> list[int]:
    """Those that take longer than all before, as joins to a growing tensor do and few others between them."""
    grown: list[int] = []
    for dur in durs:
        if not grown or dur > _LONGER * grown[-1]:
            grown.append(dur)
    return grown
