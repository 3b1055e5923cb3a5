"""Batches that are put together from hundreds of tensors: what the host takes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.analyses.many_joins import ManyJoins
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["joined_share", "joins_many"]

_JOINS = ("aten::stack", "aten::cat")


def joins_many(step_ops: Iterable[StepOp]) -> bool:
    """Whether some call may join hundreds of tensors: one for each launch on average is no reason to look."""
    return any(op.name in _JOINS and op.within is None and op.launches > op.calls for op in step_ops)


def joined_share(mean_step: MeanStep, many_joins: Table[ManyJoins], *, lists: bool = True) -> float:
    """The part of a step that the host takes for such calls, and to make the lists before them.

    No CUDA graph replaces them: each time other tensors are put together.
    """
    ns = sum(row.host_ns + (row.before_ns if lists else 0) for row in many_joins)
    return min(1.0, mean_step.share(mean_step.per_step(ns)))
