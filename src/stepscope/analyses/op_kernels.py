"""Which operators launch which kernels."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["OpKernel", "op_kernels"]


@dataclass(frozen=True, slots=True)
class OpKernel:
    """All runs of one kernel, copy or fill that operators of one name launched."""

    op: Annotated[str | None, "Innermost operator at the launch; NULL outside any, and in replayed graphs."]
    kernel: Annotated[str | None, "Name of the kernel, copy or fill."]
    kind: Annotated[str, "kernel, memcpy or memset."]
    calls: Annotated[int, "How often it ran."]
    total_ns: Annotated[int, "Summed duration over all devices and streams."]
    op_share: Annotated[float | None, "Share of the device work that the operator launched."]
    kernel_share: Annotated[float | None, "Share of the time of all runs of this name."]
    longest_ns: Annotated[int, "The longest run."]
    longest_event: Annotated[int, "Event of that run."]


_SQL = """
    SELECT o.name AS op, w.name AS kernel, kind, count(*) AS calls,
           sum(coalesce(w.dur_ns, 0))::BIGINT AS total_ns,
           sum(coalesce(w.dur_ns, 0)) / nullif(sum(sum(coalesce(w.dur_ns, 0))) OVER (PARTITION BY o.name), 0)
               AS op_share,
           sum(coalesce(w.dur_ns, 0))
               / nullif(sum(sum(coalesce(w.dur_ns, 0))) OVER (PARTITION BY w.name, kind), 0) AS kernel_share,
           max(coalesce(w.dur_ns, 0)) AS longest_ns,
           arg_max(w.event, row(coalesce(w.dur_ns, 0), -w.start_ns)) AS longest_event
    FROM device_work w LEFT JOIN (SELECT event, name FROM ops) o ON o.event = w.op
    GROUP BY o.name, w.name, kind ORDER BY total_ns DESC, op, kernel, kind
"""


@analysis(
    reads={"device_work": ("event", "name", "kind", "start_ns", "dur_ns", "op"), "ops": ("event", "name")}
)
def op_kernels(trace: Trace) -> Table[OpKernel]:
    """Says which kernels each operator launches, and which operators launch a kernel.

    The figures are those of the whole trace, not of its steps alone.
    """
    table = trace.query(OpKernel, _SQL)
    return table if len(table) else table.with_notes(("The profile has no device work.",))
