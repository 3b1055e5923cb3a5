"""A device takes longer for the same kernels, and the other ranks wait for it."""

from __future__ import annotations

from stepscope.findings import Advice, Category, rule
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.runs.analyses.stragglers import Straggler
from stepscope.runs.mean_step import RunFacts, RunMeanStep
from stepscope.runs.rules._late import claims_of, late_ranks
from stepscope.tables import Table

__all__ = ["slower_device"]


@rule(category=Category.DEVICE)
def slower_device(
    run_step: RunMeanStep, run_facts: RunFacts, stragglers: Table[Straggler], *, least_share: float = 0.02
) -> Advice | None:
    """A rank runs the same kernels with the same shapes as the others, and they take longer on it.

    Its clock is held back by heat or power, another program uses the device, or it is faulty. Without an
    accelerator, other programs have its cores.

    Gain: all ranks are played together, with the computing of the slow rank brought down to that of the
    median rank.

    - at most: what the run's step loses if that is done in every step by itself, with 1/5 more.
    - at least: what it loses if only what the rank takes longer over all steps goes, less 15 % and less the
      error of the play without a change.
    - If the play does not reproduce the run: at least nothing, and at most the lateness.
    """
    late = late_ranks(stragglers, "slower device", run_step, least_share)
    if late is None:
        return None
    rank, host = late.worst.rank, late.worst.host
    on = f"ssh {host} " if host else ""
    if run_facts.devices:
        look = f"{on}nvidia-smi -q -d TEMPERATURE,PERFORMANCE,POWER,ECC    # clocks held back, errors"
    else:
        look = f"{on}top    # other programs on its cores; threads of torch: OMP_NUM_THREADS"
    machine = host or "that machine"
    swap = f"torchrun --nnodes … train.py    # without {machine}: is no rank late then, it was the device"
    return Advice(
        title=f"Rank {rank}'s {'GPU' if run_facts.devices else 'processor'} is slower than the others",
        because=late.story(run_step, "runs the same kernels as the others, but takes longer for them"),
        saving=late.saving,
        certainty="likely",
        fix=fix_of(line(Change.MACHINE, look), line(Change.MACHINE, swap)),
        check=f"stepscope show stragglers RUN: no row of rank {rank} with the cause slower device; "
        f"stepscope show gpu_health RUN --rank {rank}: throttled_share near 0.",
        evidence=late.evidence,
        claims=claims_of(late.cause),
    )
