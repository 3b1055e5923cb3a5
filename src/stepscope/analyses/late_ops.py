"""In which operators the host was while devices waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._own_time import OWN_READS, own_times
from stepscope.analyses._windows import how_steps_were_found
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["LateOp", "late_ops"]


@dataclass(frozen=True, slots=True)
class LateOp:
    """One operator with the runtime calls that it made, but without the operators inside it."""

    name: Annotated[str | None, "Name of the operator; NULL for what is outside of all."]
    late_ns: Annotated[int, "Time of the steps in which it was the innermost and a device waited for it."]
    share: Annotated[float | None, "Part of such time of all operators; NULL without any."]
    own_ns: Annotated[int, "Time of the steps in which it was the innermost, on threads that drive the work."]


@analysis(reads=OWN_READS)
def late_ops(trace: Trace) -> Table[LateOp]:
    """Says for each operator how long devices waited while it was the innermost one on the host."""
    found = [one for one in own_times(trace) if one.late_ns or one.own_ns]
    whole = sum(one.late_ns for one in found)
    rows = [LateOp(one.op, one.late_ns, one.late_ns / whole if whole else None, one.own_ns) for one in found]
    rows.sort(key=lambda row: (-row.late_ns, -row.own_ns, str(row.name)))
    nothing = [] if rows else ["No host calls in the steps."]
    return Table.of(LateOp, rows, nothing + how_steps_were_found(trace))
