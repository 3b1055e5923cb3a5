"""Steps that launch exactly the same kernels."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["LaunchPattern", "launch_patterns"]


@dataclass(frozen=True, slots=True)
class LaunchPattern:
    """Steps with the same kernels, with the same grids, as often: their tensors have the same sizes."""

    steps: Annotated[int, "How many steps there are."]
    first_step: Annotated[int, "Number of the first of them."]
    kernels: Annotated[int, "Kernels that each of them launches."]


# Correlation and stream of a kernel are in columns of their own, so kernels that are launched alike have the
# same arguments. Their order does not matter.
_SQL = """
    WITH looks AS (
        SELECT p.step, w.name_id, w.args_id, count(*) AS kernels
        FROM device_work w JOIN call_sites p ON p.event = w.launch
        WHERE w.kind = 'kernel' AND p.step IS NOT NULL GROUP BY p.step, w.name_id, w.args_id),
    patterns AS (
        SELECT step, sum(hash(name_id, args_id, kernels)::HUGEINT) AS pattern, sum(kernels)::BIGINT AS kernels
        FROM looks GROUP BY step)
    SELECT count(*) AS steps, min(step)::BIGINT AS first_step, any_value(kernels) AS kernels
    FROM patterns GROUP BY pattern ORDER BY steps DESC, first_step
"""


@analysis(
    reads={
        "steps": ("source",),
        "device_work": ("name_id", "args_id", "launch", "kind"),
        "call_sites": ("event", "step"),
    }
)
def launch_patterns(trace: Trace) -> Table[LaunchPattern]:
    """Groups steps by the kernels that they launch, with their grids: inputs of other sizes make others.

    Batches that are padded to the longest text in them, for example, differ from step to step.
    """
    rows = trace.query(LaunchPattern, _SQL)
    nothing = [] if len(rows) else ["No kernel was launched in a step."]
    return Table.of(LaunchPattern, rows, nothing + how_steps_were_found(trace))
