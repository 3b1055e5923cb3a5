"""Each step or epoch starts a DataLoader anew."""

from __future__ import annotations

from typing import Any

from stepscope import units
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["loader_restarts"]

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

    Or its workers are not kept, and processes are started for each epoch.

    Gain, if one iterator is kept:

    - at most: all time from the making of the iterators to the operator that follows their first batch, and
      of their last call, which ends the workers.
    - at least: that without loading a batch and without the last call: starting workers, and shuffling.

    Gain, if workers are kept, and epochs begin in some of the recorded steps:

    - at most: the same.
    - at least: the making of the iterators, which starts the workers, and the last call. Nothing if only one
      epoch begins: how many steps an epoch has was not recorded.
    """
    rows = [row for row in loader_starts if row.steps >= max(2, mean_step.steps - 1)]
    if rows:
        return _in_each_step(mean_step, rows, least_share)
    return _for_epochs(mean_step, [row for row in loader_starts if row.ends_workers], least_share)


def _in_each_step(mean_step: MeanStep, rows: list[LoaderStart], least_share: float) -> Advice | None:
    low, whole, ending = (
        mean_step.per_step(sum(getattr(row, name) for row in rows))
        for name in ("start_up_ns", "whole_ns", "ending_ns")
    )
    high = whole + ending
    saving = Saving(waited_ns=(min(low, high), high))
    if mean_step.gain(saving).high_share < least_share:
        return None
    starts = mean_step.per_step(sum(row.starts for row in rows))
    asked = sum(row.batches for row in rows) / max(1, sum(row.starts for row in rows))
    epochs = any(row.ending_ns for row in rows)
    batches = f"{units.tally(asked - 1)} batches" if epochs else "one batch"
    workers = " starts its workers and" if any(row.has_workers for row in rows) else ""
    made = "a new iterator" if round(starts) == 1 else f"{units.tally(starts)} new iterators"
    ends = f" Ending it takes {units.duration(ending)} more." if epochs else ""
    return _advice(
        rows,
        title="A DataLoader is started anew in each step",
        because=f"Each step makes {made} of a DataLoader, for {batches} each. A new one{workers} shuffles "
        f"the whole data set before its first batch. That takes {units.duration(low)} of a step, and "
        f"{units.duration(whole)} with the first batch.{ends}",
        saving=saving,
        fix=_KEPT if epochs and workers else _FIX,
        evidence={
            "starts_per_step": starts,
            "start_up_ns": round(low),
            "whole_ns": round(whole),
            "ending_ns": round(ending),
            "calls_per_start": asked,
        },
    )


def _for_epochs(mean_step: MeanStep, rows: list[LoaderStart], least_share: float) -> Advice | None:
    starts = sum(row.starts for row in rows)
    making, whole, ending = (
        sum(getattr(row, name) for row in rows) for name in ("making_ns", "whole_ns", "ending_ns")
    )
    low = mean_step.per_step(making + ending) if starts > 1 else 0.0
    saving = Saving(waited_ns=(low, mean_step.per_step(whole + ending)))
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    begins = "one epoch begins" if starts == 1 else f"{units.count(starts)} epochs begin"
    each = "" if starts == 1 else "each time "
    how_often = " How many steps an epoch has was not recorded: with more, it is less of a step."
    return _advice(
        rows,
        title="Workers of a DataLoader are started anew for each epoch",
        because=f"In {units.count(mean_step.steps)} recorded steps {begins}, and the DataLoader starts its "
        f"workers anew: that takes {each}{units.duration(making / starts)}, and "
        f"{units.duration(whole / starts)} with the first batch. Before that, ending the workers of the last "
        f"epoch takes {units.duration(ending / starts)}.{how_often if starts == 1 else ''}",
        saving=saving,
        fix=_KEPT,
        evidence={"starts": starts, "making_ns": making, "whole_ns": whole, "ending_ns": ending},
    )


def _advice(
    rows: list[LoaderStart], *, title: str, because: str, saving: Saving, fix: Fix, evidence: dict[str, Any]
) -> Advice:
    return Advice(
        title=title,
        because=because,
        saving=saving,
        certainty="likely",
        fix=fix,
        check="stepscope show loader_starts: no starts.",
        evidence=evidence | {"loader": rows[0].loader},
        claims=frozenset({Claim(Time.WAITED, Part.DATALOADER), Claim(Time.STARVED, Part.DATALOADER)}),
        locations=locations_of(
            (row.user_frame, "the iterator is made here", ("aten::randperm",)) for row in rows
        ),
    )
