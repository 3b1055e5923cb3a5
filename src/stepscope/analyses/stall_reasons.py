"""What warps of kernels waited for."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses.measured_kernels import NO_COUNTERS
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StallReason", "stall_reasons"]


@dataclass(frozen=True, slots=True)
class StallReason:
    """One thing that the warps of a kernel waited for."""

    kernel: Annotated[str, "Name of the kernel, as Nsight Compute has it."]
    grid: Annotated[str | None, "Blocks in x, y, z."]
    block: Annotated[str | None, "Threads of a block in x, y, z."]
    reason: Annotated[str, "What they waited for, as Nsight Compute names it; selected: for nothing."]
    value: Annotated[float, "Warps in this state for each issued instruction, or samples of them."]
    share: Annotated[float | None, "Part of all states."]
    measured_by: Annotated[str, "counters or samples."]


_COUNTED = r"^smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio$"
_SAMPLED = r"^smsp__pcsamp_warps_issue_stalled_(\w+?)(?:\.\w+)?$"
_SQL = rf"""
    WITH told AS (
        SELECT kernel, grid, block, starts_with(metric, 'smsp__pcsamp') AS sampled,
               CASE WHEN sampled THEN regexp_extract(metric, '{_SAMPLED}', 1)
                    ELSE regexp_extract(metric, '{_COUNTED}', 1) END AS reason,
               sum(value * launches) / sum(launches) AS value
        FROM kernel_counters WHERE contains(metric, 'issue_stalled_') GROUP BY ALL)
    SELECT kernel, grid, block, reason, value,
           value / nullif(sum(value) OVER (PARTITION BY kernel, grid, block, sampled), 0) AS share,
           CASE WHEN sampled THEN 'samples' ELSE 'counters' END AS measured_by
    FROM told WHERE reason <> '' AND NOT ends_with(reason, '_not_issued')
    ORDER BY kernel, grid, block, measured_by, value DESC, reason
"""


@analysis(reads={"kernel_counters": ("launches", "kernel", "grid", "block", "metric", "value")})
def stall_reasons(trace: Trace) -> Table[StallReason]:
    """Says what the warps of measured kernels waited for; from Nsight Compute."""
    table = trace.query(StallReason, _SQL)
    if len(table):
        return table
    if not trace.has("kernel_counters"):
        return table.with_notes((NO_COUNTERS,))
    return table.with_notes(("The file has no stall reasons: ncu --section WarpStateStats measures them.",))
