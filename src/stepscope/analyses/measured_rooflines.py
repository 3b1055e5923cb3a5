"""FLOPs and bytes as counters measured them, against those that are estimated from shapes."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses.measured_kernels import NO_COUNTERS, MeasuredKernel, measured_kernels
from stepscope.costs.op_work import READS, work_of_ops
from stepscope.costs.roofs import Device, Priced, priced
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MeasuredRoofline", "measured_rooflines"]


@dataclass(frozen=True, slots=True)
class MeasuredRoofline:
    """One kernel of the trace that was measured and whose operator's cost is known; figures of a launch."""

    kernel: Annotated[str, "Name of the kernel in the trace."]
    grid: Annotated[str | None, "Blocks in x, y, z."]
    block: Annotated[str | None, "Threads of a block in x, y, z."]
    op: Annotated[str | None, "Operator that launches it."]
    shapes: Annotated[str | None, "Sizes of its tensors."]
    calls: Annotated[int, "How often it ran in the trace."]
    trace_ns: Annotated[int, "Its device time in the trace."]
    flops: Annotated[float | None, "FLOPs, measured."]
    estimated_flops: Annotated[int | None, "FLOPs, from the shapes: as in rooflines."]
    flops_ratio: Annotated[float | None, "Measured over estimated: above 1, more is computed than needed."]
    bytes: Annotated[float | None, "Bytes to and from the device's memory, measured."]
    estimated_bytes: Annotated[int | None, "Least bytes, from the shapes: inputs and outputs once."]
    bytes_ratio: Annotated[float | None, "Measured over estimated: above 1, data is moved more than once."]
    bound: Annotated[str, "What limits it, measured: see measured_kernels."]


_SHAPES = """
    SELECT name, count(DISTINCT (grid, block)) AS shapes FROM device_work WHERE kind = 'kernel' GROUP BY name
"""


@analysis(
    reads={
        **READS,
        "device_work": (*READS["device_work"], "grid", "block"),
        "kernel_counters": ("launch",),
    }
)
def measured_rooflines(trace: Trace) -> Table[MeasuredRoofline]:
    """Compares FLOPs and bytes that Nsight Compute measured with those estimated from shapes."""
    measured = [row for row in measured_kernels(trace) if row.trace_kernel]
    if not measured:
        nothing = NO_COUNTERS if not trace.has("kernel_counters") else "No measured kernel is in the trace."
        return Table.of(MeasuredRoofline, (), (nothing,))
    only = {row["name"] for row in trace.rows(_SHAPES) if row["shapes"] == 1}
    done: defaultdict[str, list[Priced]] = defaultdict(list)
    for one in priced(work_of_ops(trace), Device(None, "", 1)):
        if one.work.kernel is not None:
            done[one.work.kernel].append(one)
    found = [_row(row, done[row.trace_kernel or ""]) for row in measured if row.trace_kernel in only]
    kept = [row for row in found if row is not None]
    said = (
        f"{units.count(len(kept))} of {units.count(len(measured))} kernels that were measured and are in the "
        "trace have one shape and one operator, so that the two can be compared."
    )
    return Table.of(MeasuredRoofline, kept, (said,))


def _row(measured: MeasuredKernel, works: list[Priced]) -> MeasuredRoofline | None:
    """A row if one operator with one set of shapes does nothing but launch this kernel once."""
    if len({(one.work.op, one.work.args) for one in works}) != 1:
        return None
    calls, kernels = (sum(sum(getattr(one.work, of)) for one in works) for of in ("calls", "kernels"))
    cost = works[0].cost
    if calls != kernels or calls != measured.trace_calls or cost.flops is None:
        return None
    return MeasuredRoofline(
        kernel=measured.trace_kernel or "",
        grid=measured.grid,
        block=measured.block,
        op=works[0].work.op,
        shapes=cost.shapes,
        calls=calls,
        trace_ns=measured.trace_ns,
        flops=measured.flops,
        estimated_flops=cost.flops,
        flops_ratio=_over(measured.flops, cost.flops),
        bytes=measured.bytes,
        estimated_bytes=cost.bytes,
        bytes_ratio=_over(measured.bytes, cost.bytes),
        bound=measured.bound,
    )


def _over(measured: float | None, estimated: int | None) -> float | None:
    return measured / estimated if measured is not None and estimated else None
