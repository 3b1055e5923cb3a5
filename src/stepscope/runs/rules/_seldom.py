"""Ranks that are held up in a few steps only."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.runs.analyses.rank_steps import RankStep

__all__ = ["held_up_ns", "long_steps", "seldom_late"]

_FEW = 0.5
"""A rank that is held up in at least this part of its steps is slow always."""
_FAR_LONGER = 2.0


def held_up_ns(row: RankStep) -> int:
    """What of a step the host spent without giving the device anything to do."""
    return row.host_ns + row.sync_ns + row.other_ns + row.copies_ns


def long_steps(rows: Iterable[RankStep], rank: int) -> list[tuple[RankStep, float]]:
    """Steps in which a rank was held up far longer than in its usual ones, and by how much more."""
    own = [row for row in rows if row.rank == rank]
    if len(own) < 3:
        return []
    usual = median(held_up_ns(row) for row in own)
    least = max(usual, 0.05 * median(row.step_ns for row in own))
    return [(row, held_up_ns(row) - usual) for row in own if held_up_ns(row) > _FAR_LONGER * least]


def seldom_late(rows: Iterable[RankStep], rank: int) -> bool:
    """Whether most of a rank's time of that kind is in a few steps."""
    own = [row for row in rows if row.rank == rank]
    found = long_steps(own, rank)
    more = sum(ns for _, ns in found)
    return bool(found) and len(found) < _FEW * len(own) and 2 * more > sum(map(held_up_ns, own))
