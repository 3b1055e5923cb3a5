"""Operators that only compute a number which the host reads: they go with the read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.findings import Saving
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._phrases import often
from stepscope.findings._waits import of_shares

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.analyses.read_checks import ReadCheck
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["read_checks_said", "with_read_checks"]


def with_read_checks(
    mean_step: MeanStep, reads: Saving, checks: Table[ReadCheck], *, least_share: float
) -> Saving:
    """What is saved if these operators go with the reads.

    - at least: those that look for infinities and NaNs, for all but one read of a step. An infinity or a NaN
      in one result reaches those computed from it, so that one check at the end finds it, too.
    - at most: all of them, and what the reads themselves save; but no more than what is left of the slower of
      host and GPU allows, once the host no longer waits.

    Where the reads save less than `least_share`, only operators that are sure to save more are told.
    """
    if not len(checks):
        return reads
    finite = [row for row in checks if row.finite]
    often_finite = mean_step.per_step(sum(row.reads for row in finite))
    spare = max(0.0, 1 - 1 / often_finite) if often_finite else 0.0
    gain = mean_step.gain(reads)
    sure = mean_step.gain(_without(mean_step, finite, spare)).low_share
    if max(gain.high_share, sure) < least_share:
        return reads
    beside = mean_step.gain(_without(mean_step, checks)).high_share
    host_ns, device_ns = _per_step(mean_step, checks)
    ahead = saved_by_dropping_stretches(mean_step, host_ns, device_ns, waits_go=True)
    most = min(gain.high_share + beside, mean_step.gain(ahead).high_share)
    high = max(gain.high_share, most)
    return of_shares(mean_step, min(high, max(gain.low_share, sure)), high)


def read_checks_said(mean_step: MeanStep, checks: Table[ReadCheck]) -> str:
    """A sentence about them, with a space before it; nothing where there are none."""
    if not len(checks):
        return ""
    ops = mean_step.per_step(sum(row.ops - row.reads for row in checks))
    host_ns, device_ns = _per_step(mean_step, checks)
    most_often = next(iter(checks)).most_often
    return (
        f" Numbers that are read take {often(ops, 'operator')} to compute, mostly {most_often}. With "
        f"their reads these take {units.duration(host_ns)} of the host's time and "
        f"{units.duration(device_ns)} of the GPU's."
    )


def _per_step(mean_step: MeanStep, checks: Iterable[ReadCheck]) -> tuple[float, float]:
    """Time of a step on the host and on the GPU, the reads included."""
    rows = list(checks)
    host_ns = mean_step.per_step(sum(row.host_ns for row in rows))
    return host_ns, mean_step.per_step(sum(row.device_ns for row in rows))


def _without(mean_step: MeanStep, checks: Iterable[ReadCheck], part: float = 1.0) -> Saving:
    """What this part of them saves, if the host still waits where it reads."""
    rows = list(checks)
    host_ns, device_ns = _per_step(mean_step, rows)
    host_ns -= mean_step.per_step(sum(row.read_ns for row in rows))
    return saved_by_dropping_stretches(mean_step, part * max(0.0, host_ns), part * device_ns)
