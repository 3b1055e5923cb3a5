"""What operators cost inside the steps, with all they called: host, device, and devices that waited."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._step_tree import BY_CALLER, READS, rows_of, step_tree
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StepOp", "step_ops"]


@dataclass(frozen=True, slots=True)
class StepOp:
    """One operator, in one phase, called from one function of the user's."""

    name: Annotated[str | None, "Name of the operator."]
    phase: Annotated[str, "Phase of training."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it, for most of its calls."]
    within: Annotated[str | None, "Operator right around it; NULL for those that the program called itself."]
    calls: Annotated[int, "How often it began in a step."]
    per_step: Annotated[float, "The same per step, on average."]
    host_ns: Annotated[int, "Time in it and all it called, inside the steps; recursion counts once."]
    computing_ns: Annotated[
        int, "The part of it in operators with 50 µs or more of their own a call: few do so but to compute."
    ]
    starved_ns: Annotated[int, "Such time while a device was idle and waited for a launch of this thread."]
    device_ns: Annotated[int, "Device work that it and all it called launched in the steps."]
    launches: Annotated[int, "Launches of that work."]


@analysis(reads=READS)
def step_ops(trace: Trace) -> Table[StepOp]:
    """Sums up operators inside the steps with all they called: host time, device work, starved time.

    Unlike `ops` it leaves out what is outside the steps, and keeps phases and callers apart. An operator
    counts with all that it called, so rows of operators inside one another hold the same time.
    """
    tree = step_tree(trace)
    rows = rows_of(StepOp, tree.by_caller, BY_CALLER, tree.steps)
    nothing = [] if rows else ["No operator began in a step."]
    return Table.of(StepOp, rows, nothing + how_steps_were_found(trace))
