"""Where in the steps a rank did nothing but communicate."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._exposed import EXPOSED_READS, exposed
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ExposedPart", "exposed_parts"]


@dataclass(frozen=True, slots=True)
class ExposedPart:
    """A stretch of a step in which the rank did nothing but communicate."""

    step: Annotated[int, "The step."]
    call: Annotated[int, "The collective that it waited for: of several at once the last to end."]
    start_ns: Annotated[int, "When it began."]
    dur_ns: Annotated[int, "How long it took."]


@analysis(reads=EXPOSED_READS)
def exposed_parts(trace: Trace) -> Table[ExposedPart]:
    """Lists the stretches of steps in which nothing but collectives ran, and which was waited for.

    With a device they sum to the communication of `steps`. Without one, the host waits where it runs no
    operator until a collective ends: others run beside what it computes.
    """
    found = exposed(trace)
    nothing = [] if found.num_rows else ["In no step was a collective waited for, with nothing else running."]
    return Table(ExposedPart, found, nothing + how_steps_were_found(trace))
