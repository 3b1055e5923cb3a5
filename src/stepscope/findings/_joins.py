"""Batches that are put together from hundreds of tensors: what the host takes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analyses.many_joins import ManyJoins
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["joined_share"]


def joined_share(mean_step: MeanStep, many_joins: Table[ManyJoins], *, lists: bool = True) -> float:
    """The part of a step that the host takes for such calls, and to make the lists before them.

    No CUDA graph replaces them: each time other tensors are put together.
    """
    ns = sum(row.host_ns + (row.before_ns if lists else 0) for row in many_joins)
    return min(1.0, mean_step.share(mean_step.per_step(ns)))
