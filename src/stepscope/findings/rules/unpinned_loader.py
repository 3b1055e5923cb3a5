"""A loader does not pin its batches, and they are copied from pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.data_loaders import DataLoader
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._copying import moving
from stepscope.findings._pageable import CLAIMS, LOADER, OWN, pageable
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["unpinned_loader"]


@rule(category=Category.COPIES)
def unpinned_loader(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    copies_by_frame: Table[Copy],
    host_syncs: Table[HostSync],
    data_loaders: Table[DataLoader],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """A loader has pin_memory=False, and batches are copied to the GPU from pageable memory.

    Gain: that of pageable-copies, whose place this finding takes where the settings of the loaders are known.
    The profile does not say which tensor of the host a copy came from: it is likely, not certain, that these
    are the loader's batches.
    """
    loaders = [row for row in data_loaders if row.pin_memory is False and row.batches_per_step]
    found = pageable(mean_step, facts, copies, host_syncs, least_share) if loaders else None
    if found is None:
        return None
    most = max(loaders, key=lambda row: row.batches_per_step or 0.0)
    named = f"The DataLoader of {most.dataset}" if most.dataset else "A DataLoader of the program"
    return Advice(
        title="The DataLoader does not pin its batches",
        because=f"{named} has pin_memory=False. {found.because}",
        saving=found.saving,
        certainty="likely",
        fix=fix_of(line(Change.PINNED, LOADER), OWN),
        check="stepscope show copies: host memory is pinned, and the host time of a call is microseconds.",
        evidence={
            **found.evidence,
            "batches_per_step": most.batches_per_step,
            "num_workers": most.num_workers,
            "unpinned_loaders": len(loaders),
        },
        claims=CLAIMS,
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step")
            for row in moving(copies_by_frame, "HtoD", "pageable")
        ),
    )
