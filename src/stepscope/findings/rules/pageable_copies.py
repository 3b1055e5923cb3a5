"""Batches are copied from pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._copying import MANY_COPIES, large, moving
from stepscope.findings._pageable import CLAIMS, LOADER, OWN, pageable
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["pageable_copies"]


@rule(category=Category.COPIES, yields_to=("unpinned_loader",))
def pageable_copies(
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    copies_by_frame: Table[Copy],
    host_syncs: Table[HostSync],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """The host copies to the GPU from pageable memory and waits for each copy.

    Gain: the driver moves pageable memory through a buffer of its own, and neither side does anything else
    until that is done. From pinned memory the same bytes take only the time of the bus, at the rate
    measured in this trace or between those of two generations of the bus.

    - at most: the time of these copies with no kernel beside them, less the fast rate as far as the GPU
      sets the pace, and the GPU's idle time in the rest of these calls and after them.
    - at least: the time of these copies, less the slow rate. None of the idle time, because other waits may
      follow right after.

    Tensors that went to the host before belong to needless-transfers, and so do many small ones.
    """
    moved = moving(copies_by_frame, "HtoD", "pageable")
    many = mean_step.per_step(sum(row.calls for row in moved)) >= MANY_COPIES
    if many and not any(map(large, moved)):
        return None
    found = pageable(mean_step, facts, copies, host_syncs, least_share)
    if found is None:
        return None
    return Advice(
        title="Batches are copied to the GPU from pageable memory",
        because=found.because,
        saving=found.saving,
        certainty="certain",
        fix=fix_of(line(Change.PINNED, LOADER), OWN),
        check="stepscope show copies: host memory is pinned, and the host time of a call is microseconds.",
        evidence=found.evidence,
        claims=CLAIMS,
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step") for row in moved
        ),
    )
