"""Batches that are put together from hundreds of tensors: what the host takes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.analyses.many_joins import ManyJoins
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep
    from stepscope.tables import Table

__all__ = ["joined_share"]

_JOINS = ("aten::stack", "aten::cat")


def joined_share(mean_step: MeanStep, step_ops: Iterable[StepOp], many_joins: Table[ManyJoins]) -> float:
    """The part of a step that the host takes for such calls, and to make the lists before them.

    No CUDA graph replaces them: each time other tensors are put together. Where each of them launches once,
    the table is not looked into.
    """
    if not any(op.name in _JOINS and op.within is None and op.launches > op.calls for op in step_ops):
        return 0.0
    ns = sum(row.host_ns + row.before_ns for row in many_joins)
    return min(1.0, mean_step.share(mean_step.per_step(ns)))
