"""Which functions of libraries call operators for the user's code, and in which modules of the model."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._step_tree import BY_PLACE, READS, rows_of, step_tree
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["LibraryFunction", "library_functions"]


@dataclass(frozen=True, slots=True)
class LibraryFunction:
    """One operator, called from one function of a library or in one kind of module, for the user's code."""

    name: Annotated[str | None, "Name of the operator, or of a runtime call outside of any."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it."]
    library_frame: Annotated[
        str | None,
        "Innermost function outside torch and Python; NULL where that is the user's own.",
    ]
    module: Annotated[
        str | None, "Class of the innermost nn.Module, after that of the module around it: `Block.Attention`."
    ]
    within: Annotated[str | None, "Operator right around it; NULL for those that the program called itself."]
    calls: Annotated[int, "How often it began in a step."]
    per_step: Annotated[float, "The same per step, on average."]
    host_ns: Annotated[int, "Time in it and all it called, inside the steps; recursion counts once."]
    starved_ns: Annotated[int, "Such time while a device was idle and waited for a launch of this thread."]
    device_ns: Annotated[int, "Device work that it and all it called launched in the steps."]
    launches: Annotated[int, "Launches of that work."]


@analysis(reads=READS)
def library_functions(trace: Trace) -> Table[LibraryFunction]:
    """Shows from where in libraries and modules the operators of a step are called.

    For programs that are mostly library code, where one line of the user's leads to everything. Backward
    counts for the place of its forward operator. Operators inside one another hold the same time.
    """
    if not trace.has("python_frames"):
        return Table.of(LibraryFunction, [], ["No Python frames: record with with_stack=True."])
    tree = step_tree(trace)
    of_user = [row for row in tree.by_place if row["user_frame"]]
    rows = rows_of(LibraryFunction, of_user, BY_PLACE, tree.steps, ("starved_ns", "device_ns", "launches"))
    nothing = [] if rows else ["No operator was called by a function of the user's."]
    return Table.of(LibraryFunction, rows, nothing + how_steps_were_found(trace))
