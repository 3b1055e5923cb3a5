"""Collectives that slow down the kernels beside them by more than they hide."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.runs.analyses.collective_ranks import CollectiveRank
from stepscope.runs.analyses.overlapped_kernels import OverlappedKernel
from stepscope.runs.analyses.rank_steps import RankStep
from stepscope.runs.mean_step import RunMeanStep
from stepscope.runs.simulation import RankChange
from stepscope.tables import Table

__all__ = ["harmful_overlap"]

_FIX = """\
NCCL_MAX_CTAS=8 torchrun … train.py    # fewer multiprocessors for collectives; try 4 to 16 (NCCL 2.17)
NCCL_MAX_NCHANNELS=8 torchrun … train.py    # older NCCL and RCCL
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun … train.py    # collectives begin in order"""


@rule(category=Category.COMMUNICATION)
def harmful_overlap(
    run_step: RunMeanStep,
    overlapped_kernels: Table[OverlappedKernel],
    collective_ranks: Table[CollectiveRank],
    rank_steps: Table[RankStep],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Kernels take longer beside collectives than alone, by more than the transfers that this hides.

    Gain: all ranks are played together with kernels that lose nothing.

    - at most: kernels take as long as alone, and transfers stay hidden.
    - at least: nothing. With fewer multiprocessors, collectives themselves get slower.
    """
    lost = float(sum(row.lost_ns for row in overlapped_kernels))
    each = max(1, run_step.steps * run_step.ranks)
    hidden = (
        sum(
            max(0, (row.transfer_ns or 0) - (row.exposed_transfer_ns or 0))
            for row in collective_ranks
            if row.step is not None
        )
        / each
    )
    computing = sum(row.compute_ns for row in rank_steps) / each
    if lost <= hidden or run_step.share(lost) < least_share or not computing:
        return None
    left = max(0.0, 1 - lost / computing)
    saving = run_step.saving([RankChange(None, "compute", left)], lost)
    worst = max(overlapped_kernels, key=lambda row: row.lost_ns)
    return Advice(
        title="Collectives slow down the kernels beside them",
        because=f"Beside collectives, kernels take {units.duration(lost)} a step longer than alone "
        f"({units.share(run_step.share(lost))} of the step); the transfers that this hides take "
        f"{units.duration(hidden)}. Most affected: {worst.name[:80]}, "
        f"{units.duration(worst.alone_mean_ns)} alone, {units.duration(worst.beside_mean_ns)} beside them.",
        saving=Saving(waited_ns=(0.0, saving.waited_ns[1])),
        certainty="likely",
        fix=fix_of(_FIX),
        check="stepscope show overlapped_kernels RUN: lost_ns falls, and the step gets shorter.",
        evidence={
            "lost_ns": round(lost),
            "hidden_transfer_ns": round(hidden),
            "kernel": worst.name,
            "alone_mean_ns": worst.alone_mean_ns,
            "beside_mean_ns": worst.beside_mean_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.KERNELS)}),
    )
