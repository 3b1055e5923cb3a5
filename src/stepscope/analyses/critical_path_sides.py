"""Whether host or device determined the length of each step."""

from __future__ import annotations

from typing import Annotated

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.critical_path import KINDS, ON_DEVICE, PATH_STEPS, path_sums, walk_of
from stepscope.simulation.dependencies import DEPENDENCY_READS
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CriticalPathSides", "critical_path_sides"]


@dataclass(frozen=True, slots=True)
class CriticalPathSides:
    """The critical path of one step, by side."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number of the step."]
    path_ns: Annotated[int, "Length of the step: both sides together."]
    device_ns: Annotated[int, "Work on the path, and waiting for other work of a device."]
    communication_ns: Annotated[int, "Of that: collectives."]
    host_ns: Annotated[int, "The rest: the host, its threads and the latency of launches."]


@analysis(
    reads={
        **DEPENDENCY_READS,
        "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "thread"),
    }
)
def critical_path_sides(trace: Trace) -> Table[CriticalPathSides]:
    """Says how much of the critical path of each step is the device's, and how much the host's.

    The same path as in `critical_path`, without what the host did along it, which takes most of the time to
    find out.
    """
    steps = trace.arrow(PATH_STEPS)
    if not steps.num_rows:
        return Table.of(CriticalPathSides, [], ["No events: there is no step to explain."])
    charge = _native.PathCharge(walk_of(trace, steps), False)  # single pieces are not kept
    charge.finish()
    sums = path_sums(charge.sums()).group_by(["window", "kind"]).aggregate([("path_ns", "sum")])
    found: dict[int, dict[str, int]] = {}
    for row in sums.to_pylist():
        found.setdefault(row["window"], {})[KINDS[row["kind"]]] = row["path_ns_sum"]
    rows = [
        CriticalPathSides(
            rank=trace.rank,
            step=number,
            path_ns=sum(kinds.values()),
            device_ns=sum(kinds.get(kind, 0) for kind in ON_DEVICE),
            communication_ns=kinds.get("communication", 0),
            host_ns=sum(ns for kind, ns in kinds.items() if kind not in ON_DEVICE),
        )
        for place, number in enumerate(steps["step"].to_pylist())
        if (kinds := found.get(place))
    ]
    return Table.of(CriticalPathSides, rows, how_steps_were_found(trace))
