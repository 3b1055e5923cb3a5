"""Each step makes a new iterator of a DataLoader for one batch."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["loader_restarts"]

_WORKERS = "_MultiProcessingDataLoaderIter"
_KEPT = fix_of(
    line(
        Change.WORKERS,
        "loader = DataLoader(dataset, ..., persistent_workers=True)    # workers stay for the next epoch",
        workers=4,
    ),
    "loader = DataLoader(dataset, ..., num_workers=0)    # or none, if samples are cheap to make",
)
_FIX = fix_of(
    "batches = iter(loader)      # once, instead of next(iter(loader)) in each step",
    "try: batch = next(batches)\nexcept StopIteration: batches = iter(loader); batch = next(batches)",
)


@rule(category=Category.INPUT)
def loader_restarts(
    mean_step: MeanStep, loader_starts: Table[LoaderStart], *, least_share: float = 0.02
) -> Advice | None:
    """A DataLoader is started anew in each step: `next(iter(loader))` shuffles all data for one batch.

    Or a step is an epoch, and workers that are not kept are started for it.

    Gain, if one iterator is kept:

    - at most: all time from the making of the iterators to the operator that follows their first batch, and
      of their last call, which ends the workers.
    - at least: that without loading a batch and without the last call: starting workers, and shuffling.
    """
    rows = [row for row in loader_starts if row.steps >= max(2, mean_step.steps - 1)]
    low, whole, ending = (
        mean_step.per_step(sum(getattr(row, name) for row in rows))
        for name in ("start_up_ns", "whole_ns", "ending_ns")
    )
    high = whole + ending
    saving = Saving(waited_ns=(min(low, high), high))
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    starts = mean_step.per_step(sum(row.starts for row in rows))
    asked = sum(row.batches for row in rows) / max(1, sum(row.starts for row in rows))
    epochs = any(row.ending_ns for row in rows)
    batches = f"{units.tally(asked - 1)} batches" if epochs else "one batch"
    workers = " starts its workers and" if any(row.loader == _WORKERS for row in rows) else ""
    made = "a new iterator" if round(starts) == 1 else f"{units.tally(starts)} new iterators"
    ends = f" Ending it takes {units.duration(ending)} more." if epochs else ""
    return Advice(
        title="A DataLoader is started anew in each step",
        because=f"Each step makes {made} of a DataLoader, for {batches} each. A new one{workers} shuffles "
        f"the whole data set before its first batch. That takes {units.duration(low)} of a step, and "
        f"{units.duration(whole)} with the first batch.{ends}",
        saving=saving,
        certainty="likely",
        fix=_KEPT if epochs and workers else _FIX,
        check="stepscope show loader_starts: no starts.",
        evidence={
            "starts_per_step": starts,
            "start_up_ns": round(low),
            "whole_ns": round(whole),
            "ending_ns": round(ending),
            "calls_per_start": asked,
            "loader": rows[0].loader,
        },
        claims=frozenset({Claim(Time.WAITED, Part.DATALOADER), Claim(Time.STARVED, Part.DATALOADER)}),
        locations=locations_of(
            (row.user_frame, "the iterator is made here", ("aten::randperm",)) for row in rows
        ),
    )
