"""Loops that read one number after another from the GPU: what they take, and what no CUDA graph replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.findings import Saving
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings._phrases import often
from stepscope.findings._waits import of_shares

if TYPE_CHECKING:
    from stepscope.analyses.read_loops import ReadLoops
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["outside_of_read_loops", "read_loops_said", "with_read_loops"]


def outside_of_read_loops(mean_step: MeanStep, loops: Table[ReadLoops]) -> float:
    """The part of a step in which the host does not decide by a number what to launch next."""
    return max(0.0, 1 - mean_step.share(_host_ns(mean_step, loops)))


def with_read_loops(mean_step: MeanStep, reads: Saving, loops: Table[ReadLoops]) -> Saving:
    """What is saved at most if these loops become a few operators for all their numbers."""
    if not len(loops):
        return reads
    part = 1 - outside_of_read_loops(mean_step, loops)
    device_ns = mean_step.per_step(sum(row.device_ns for row in loops))
    whole = mean_step.gain(fewer_calls(mean_step, (0.0, part), (0.0, device_ns), waits_go=True)).high_share
    gain = mean_step.gain(reads)
    return of_shares(mean_step, gain.low_share, whole) if whole > gain.high_share else reads


def read_loops_said(mean_step: MeanStep, loops: Table[ReadLoops]) -> str:
    """A sentence about them, with a space before it; nothing where there are none."""
    if not len(loops):
        return ""
    reads = mean_step.per_step(sum(row.reads for row in loops))
    return (
        f" Loops over single numbers make {often(reads, 'read')} of them, and take "
        f"{units.duration(_host_ns(mean_step, loops))} with the small operators around them."
    )


def _host_ns(mean_step: MeanStep, loops: Table[ReadLoops]) -> float:
    return mean_step.per_step(sum(row.host_ns for row in loops))
