"""Collectives that do not overlap with compute."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.critical_path_sides import CriticalPathSides
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._communication import exposed_kinds, exposed_of, in_words, speed_of, telling
from stepscope.findings._overlapping import overlap_fix
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["exposed_communication"]


@rule(category=Category.COMMUNICATION, yields_to=("slow_collectives",))
def exposed_communication(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    kernel_families: Table[KernelFamily],
    critical_path_sides: Table[CriticalPathSides],
    collective_kinds: Table[CollectiveKind],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Collectives run while nothing computes.

    Gain:

    - at most: all exposed communication, because it can at best overlap with compute.
    - at least: nothing. One rank's profile does not tell transfer from waiting, and if another rank is slow,
      no change on this one helps.
    """
    exposed = exposed_of(steps_by_any, kernel_families, mean_step)
    if mean_step.share(exposed.ns) < least_share:
        return None
    kinds = exposed_kinds(collective_kinds)
    main = next(iter(kinds), None)
    on_path = mean_step.per_step(sum(row.communication_ns for row in critical_path_sides))
    on_path = min(on_path, exposed.ns)
    rows = [row for row in collective_kinds if row.kind == main]
    largest = telling(rows)
    return Advice(
        title="Communication does not overlap with compute",
        because=f"For {units.duration(exposed.ns)} of a step ({units.share(mean_step.share(exposed.ns))}) "
        f"only collectives run{in_words(kinds, exposed.ns)}, no other kernel and no copy. "
        + (f"{speed_of(largest, mean_step)} " if largest else "")
        + f"{units.duration(on_path) if on_path else 'None'} of the time is on the critical path. This is an "
        "upper bound: it includes waiting for other ranks, which only profiles of all ranks can show.",
        saving=Saving(device_ns=(0.0, exposed.device_ns), waited_ns=(0.0, exposed.host_ns)),
        certainty="likely",
        fix=overlap_fix(main, rows, step_ops, mean_step),
        check="stepscope show devices: exposed_communication_ns falls, overlap_share rises (for gloo: "
        "communication_ns in stepscope show steps). Profile all ranks to see whether one is slow.",
        evidence={
            "exposed_communication_ns": round(exposed.ns),
            "exposed_share": mean_step.share(exposed.ns),
            "host_collectives_ns": round(exposed.host_ns),
            "on_critical_path_ns": round(on_path),
            "collective": main,
            "collectives_per_step": mean_step.per_step(sum(row.calls for row in rows)),
            "bus_gb_per_s": largest.bus_gb_per_s if largest else None,
            "link_share": largest.link_share if largest else None,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COMMUNICATION)}),
    )
