"""In which operators the host was while devices waited for it."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._own_time import OWN_READS, own_times
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StarvingOp", "starving_ops"]


@dataclass(frozen=True, slots=True)
class StarvingOp:
    """One operator with the runtime calls that it made, but without the operators inside it."""

    name: Annotated[str | None, "Name of the operator; NULL for what is outside of all."]
    starved_ns: Annotated[int, "Time of the steps in which it was the innermost and a device waited for it."]
    share: Annotated[float | None, "Share of such time of all operators; NULL without any."]
    own_ns: Annotated[int, "Time of the steps in which it was the innermost, on threads that drive the work."]


@analysis(reads=OWN_READS)
def starving_ops(trace: Trace) -> Table[StarvingOp]:
    """Says for each operator how long devices waited while it was the innermost one on the host."""
    found = [one for one in own_times(trace) if one.starved_ns or one.own_ns]
    whole = sum(one.starved_ns for one in found)
    rows = [
        StarvingOp(one.op, one.starved_ns, one.starved_ns / whole if whole else None, one.own_ns)
        for one in found
    ]
    rows.sort(key=lambda row: (-row.starved_ns, -row.own_ns, str(row.name)))
    nothing = [] if rows else ["No host calls in the steps."]
    return Table.of(StarvingOp, rows, nothing + how_steps_were_found(trace))
